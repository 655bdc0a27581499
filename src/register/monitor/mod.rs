//! What tells a cache that the pages behind an address have changed.

mod arm;
mod armed;
mod busy;
mod kernel;
mod listen;
mod mappings;
mod proof;
mod recent;
mod sequence;
mod settle;
mod strays;
mod watching;

use std::sync::Arc;

use crate::error::{Error, Result};
use crate::os::descriptors;
use crate::register::environment;
use crate::span::Span;
pub(super) use sequence::DescriptorSet;
use sequence::Sequences;
use watching::Watching;

/// How a cache learns that foreign memory has changed: memory that hostbuf did not make.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Monitor {
    /// The kernel tells, by userfaultfd, and every hit asks whether a change is under way. No library call is intercepted,
    /// so it does not matter who frees, or how. What it does not see is in the [module's](crate::register) list.
    #[default]
    Strict,
    /// The program tells, by [`invalidate`](crate::register::RegistrationCache::invalidate), before the pages change. What is
    /// not hostbuf's is registered as it is asked for and never further, since nobody says where it ends: who sends a window
    /// that grows calls [`keep`](crate::register::RegistrationCache::keep) for the whole of it first.
    Explicit,
}

impl Monitor {
    /// `HOSTBUF_CACHE_MONITOR`: `strict` (also without it) or `explicit`.
    ///
    /// # Errors
    /// [`Error::Invalid`] for anything else.
    pub fn from_environment() -> Result<Monitor> {
        Monitor::read(environment::text("HOSTBUF_CACHE_MONITOR")?.as_deref())
    }

    fn read(value: Option<&str>) -> Result<Monitor> {
        match value.map(str::trim) {
            None | Some("" | "strict") => Ok(Monitor::Strict),
            Some("explicit") => Ok(Monitor::Explicit),
            Some(other) => {
                let what = format!("HOSTBUF_CACHE_MONITOR is \"{other}\", and should be strict or explicit");
                Err(Error::invalid(what))
            }
        }
    }

    /// Gives the calling thread a table of file descriptors of its own (`unshare(2)` with CLONE_FILES), so that its hits on foreign
    /// memory scale with the number of threads.
    ///
    /// Each such hit asks a userfaultfd, and the kernel counts a reference of the descriptor's file in each call of a thread that
    /// shares its table: threads that ask the same one wait for one another's cache line. A thread with a table of its own
    /// skips the count. Memory is spread over up to 16 userfaultfds, so this matters where many threads send from one mapping:
    /// call it once at the beginning of a communication thread that opens nothing itself.
    ///
    /// The price is that of the system call. The table has copies of all descriptors of the program. What other threads
    /// open later does not exist for this thread, and what they close stays open here: a pipe does not reach its end of
    /// file, and a closed connection sends no FIN, until this thread ends or closes its copy. What this thread closes (a
    /// device's cache that is dropped in it, say) stays open in the program's table. Threads that this one starts share its
    /// table.
    ///
    /// The monitor is started if it does not run, and runs from then on as long as the process does: the thread would not have
    /// the descriptors of another one. A thread that has unshared its table by itself before the monitor started has
    /// no such descriptors either; what it asks for is registered for its leases only (`Stats::unproven`).
    ///
    /// # Errors
    /// [`Error::Unsupported`] where there is no strict monitor, or the kernel does not let the thread have a table of its own.
    #[doc(alias = "CLONE_FILES")]
    pub fn unshare_descriptors() -> Result<()> {
        let unsupported = |why: String| Error::Unsupported {
            what: "a table of descriptors of its own for a thread that asks a cache".into(),
            why,
        };
        Watching::keep_running().map_err(unsupported)?;
        descriptors::unshare().map_err(|e| unsupported(format!("unshare(CLONE_FILES): {e}")))
    }

    pub(super) fn watch(self) -> Option<Watch> {
        match self {
            Monitor::Explicit => None,
            Monitor::Strict => Some(Watch::start()),
        }
    }

    /// For tests: lets the monitor hear everything so much later, for as long as a cache lives.
    #[doc(hidden)]
    pub fn delay(time: std::time::Duration) {
        if let Ok(watching) = Watching::shared() {
            watching.delay(time);
            Watching::release(watching);
        }
    }

    /// For tests: lets caches hear of what the monitor has read so much later.
    #[doc(hidden)]
    pub fn delay_telling(time: std::time::Duration) {
        if let Ok(watching) = Watching::shared() {
            watching.delay_telling(time);
            Watching::release(watching);
        }
    }

    /// For tests: lets whoever has had memory watched go on so much later.
    #[doc(hidden)]
    pub fn pause(time: std::time::Duration) {
        if let Ok(watching) = Watching::shared() {
            watching.pause(time);
            Watching::release(watching);
        }
    }

    /// Whether this process can have a proven strict monitor, and if not, why.
    #[must_use]
    pub fn probe() -> crate::register::Probe {
        use crate::register::Probe;
        match Watching::shared() {
            Ok(watching) => {
                Watching::release(watching);
                Probe::Ready("userfaultfd sees the changes of this process's memory".into())
            }
            Err(why) => Probe::Missing(why),
        }
    }
}

/// Why memory is not watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unwatched {
    /// It is a file, or mapped shared, or nobody's: the kernel would not tell all changes.
    Memory,
    /// No monitor is proven.
    Unproven,
    /// There is no room to watch one more mapping.
    Full,
    /// It cannot be told now: memory of this program changes all the time, or pages of this range have just been given back.
    Restless,
}

/// Learns of changes. Called in the monitor's thread, and by requests that stop watching: it must not allocate, nor free, nor take a
/// lock that is held while somebody else does.
pub(super) trait Watcher: Send + Sync {
    /// The pages of `span` are gone, or about to go.
    fn changed(&self, span: Span);
}

impl Drop for Watch {
    fn drop(&mut self) {
        if let Some(watching) = self.watching.take() {
            Watching::release(watching);
        }
    }
}

/// Memory that is watched.
#[derive(Clone, Copy, Debug)]
pub(super) struct Watched {
    /// The mappings that it lies in, unless pages of them have been given back before.
    pub(super) around: Option<Span>,
    /// The descriptors that watch it.
    pub(super) descriptors: DescriptorSet,
}

/// A cache's end of the process's monitor.
pub(super) struct Watch {
    watching: Option<Arc<Watching>>,
    sequences: Option<Arc<Sequences>>,
}

impl Watch {
    fn start() -> Watch {
        match Watching::shared() {
            Ok(watching) => Watch { sequences: Some(watching.sequences().clone()), watching: Some(watching) },
            Err(why) => {
                tracing::warn!(
                    why,
                    "memory of this program cannot be watched: what is not hostbuf's is registered anew for each lease, \
                     and never kept. Use hostbuf's memory (PinnedAlloc, HostBuffer), or HOSTBUF_CACHE_MONITOR=explicit \
                     and tell the cache yourself"
                );
                Watch { watching: None, sequences: None }
            }
        }
    }

    /// Returns a number that moves with every change that is reported by `set`; odd while one is being applied. To be read
    /// before the entry that it is to vouch for.
    #[inline(always)]
    pub(super) fn sequence(&self, set: DescriptorSet) -> u64 {
        self.sequences.as_ref().map_or(0, |sequences| sequences.read(set))
    }

    /// Returns whether no change that `set` reports is under way, and none has been applied since the sequence read `before`.
    #[inline(always)]
    pub(super) fn unchanged_since(&self, set: DescriptorSet, before: u64) -> bool {
        self.sequences.as_ref().is_some_and(|sequences| sequences.unchanged_since(set, before))
    }

    /// Waits until every change that was under way has been applied: what is live then had not changed before. `false`: there
    /// is no end of changes, or of one; it has waited for about a millisecond.
    pub(super) fn settle(&self, set: DescriptorSet) -> bool {
        self.watching.as_ref().is_some_and(|w| w.settle(set))
    }

    /// Returns whether all of `span` lies in one mapping, as the kernel has them.
    pub(super) fn is_one_mapping(&self, span: Span) -> bool {
        self.watching.as_ref().is_some_and(|w| w.is_one_mapping(span))
    }

    /// Watches the whole mappings that `span` lies in.
    pub(super) fn arm(&self, span: Span) -> std::result::Result<Watched, Unwatched> {
        self.watching.as_ref().ok_or(Unwatched::Unproven)?.arm(span)
    }

    /// # Errors
    /// [`Error::Invalid`] when too many caches share the monitor.
    pub(super) fn subscribe(&self, watcher: Arc<dyn Watcher>) -> Result<()> {
        self.watching.as_ref().map_or(Ok(()), |watching| watching.subscribe(watcher))
    }

    pub(super) fn unsubscribe(&self, watcher: &dyn Watcher) {
        if let Some(watching) = &self.watching {
            watching.unsubscribe(watcher);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_is_read_and_nonsense_named() {
        assert_eq!(Monitor::read(None).unwrap(), Monitor::Strict);
        assert_eq!(Monitor::read(Some("explicit")).unwrap(), Monitor::Explicit);
        assert!(Monitor::read(Some("hooks")).unwrap_err().to_string().contains("HOSTBUF_CACHE_MONITOR"));
    }
}
