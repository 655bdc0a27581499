//! The monitor, which reports to caches that the pages behind an address have changed.

mod busy_ranges;
mod change_sequence;
mod events;
mod mappings;
mod process_monitor;
mod recent_discards;
mod residual;
#[cfg(all(test, not(loom)))]
mod scenarios;
mod self_test;
mod settle;
mod userfaultfd;
mod watch;
mod watched_ranges;

use std::sync::Arc;

use crate::error::{Error, Result};
use crate::os::descriptors;
use crate::register::environment;
use crate::span::Span;
use change_sequence::ChangeSequences;
pub(super) use change_sequence::DescriptorSet;
use process_monitor::ProcessMonitor;

/// The way in which a cache learns of changes of foreign memory, which is memory that hostbuf has not allocated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MonitorMode {
    /// The kernel reports changes with userfaultfd, and every hit checks whether a change is in progress. No library
    /// call is intercepted, so changes are seen whichever library makes them. The [module](crate::register) lists the
    /// exceptions.
    #[default]
    Strict,
    /// The program calls [`invalidate`](crate::register::RegistrationCache::invalidate) before the pages change.
    /// Foreign memory is registered exactly as requested, since the cache does not know where it ends. A program that
    /// sends a growing window first calls [`keep`](crate::register::RegistrationCache::keep) for the whole of it.
    Explicit,
}

impl MonitorMode {
    /// Reads `HOSTBUF_CACHE_MONITOR`: `strict` (the default) or `explicit`.
    ///
    /// # Errors
    /// [`Error::Invalid`] for any other value, and for an invalid `HOSTBUF_CACHE_DESCRIPTORS`.
    pub fn from_environment() -> Result<MonitorMode> {
        // The monitor reads this variable when it starts, which may be in a place that cannot return an error.
        process_monitor::descriptors_from_environment()?;
        MonitorMode::read(environment::text("HOSTBUF_CACHE_MONITOR")?.as_deref())
    }

    fn read(value: Option<&str>) -> Result<MonitorMode> {
        match value.map(str::trim) {
            None | Some("" | "strict") => Ok(MonitorMode::Strict),
            Some("explicit") => Ok(MonitorMode::Explicit),
            Some(other) => {
                let what = format!("HOSTBUF_CACHE_MONITOR is \"{other}\", and should be strict or explicit");
                Err(Error::invalid(what))
            }
        }
    }

    /// Gives the calling thread its own file descriptor table (`unshare(2)` with CLONE_FILES), so that hits on foreign
    /// memory scale with the number of threads.
    ///
    /// Each such hit makes a system call on a userfaultfd. If threads share a descriptor table, the kernel counts a
    /// reference to the file in each call, so threads that use the same userfaultfd contend for one cache line. A
    /// thread with its own table skips the count. Memory is spread over up to 16 userfaultfds, so this matters if many
    /// threads send from one mapping: call it once at the start of each communication thread that opens no descriptors
    /// itself.
    ///
    /// The new table has copies of all descriptors of the program, with the consequences of `unshare(2)`. Descriptors
    /// that other threads open later do not exist in this thread. Descriptors that they close stay open here: a pipe
    /// does not reach its end of file, and a closed connection sends no FIN, until this thread ends or closes its copy.
    /// Descriptors that this thread closes (for example by dropping the cache of a device) stay open in the program's
    /// table. Threads that this thread starts share its table. POSIX record locks (`fcntl` with F_SETLK) belong to a table,
    /// so those of this thread conflict with those of the program's other threads.
    ///
    /// The call starts the monitor if necessary and keeps it running until the process ends, since the thread would not
    /// have the descriptors of a later monitor. A thread that has unshared its table itself before the monitor started
    /// lacks these descriptors too; its requests are registered for their leases only (`Stats::unproven`).
    ///
    /// # Errors
    /// [`Error::Unsupported`] if there is no strict monitor, if the kernel refuses to unshare the table, or if the
    /// process has opened `/dev/xpmem`: when a thread with its own table ends, that driver ends all XPMEM segments and
    /// attachments of the process, with which many MPIs send between the ranks of a host.
    #[doc(alias = "CLONE_FILES")]
    pub fn unshare_descriptors() -> Result<()> {
        let unsupported = |why: String| Error::Unsupported {
            what: "a separate file descriptor table for this thread".into(),
            why,
        };
        if descriptors::has_xpmem() {
            let why = "this process has opened /dev/xpmem, whose driver would end the process's segments and attachments when \
                       this thread ends: start the MPI without XPMEM, or leave the table shared";
            return Err(unsupported(why.into()));
        }
        ProcessMonitor::keep_running().map_err(unsupported)?;
        descriptors::unshare().map_err(|e| unsupported(format!("unshare(CLONE_FILES): {e}")))
    }

    pub(super) fn watch(self) -> Option<MonitorHandle> {
        match self {
            MonitorMode::Explicit => None,
            MonitorMode::Strict => Some(MonitorHandle::start()),
        }
    }

    /// For tests: lets the monitor hear everything so much later, for as long as a cache lives.
    #[doc(hidden)]
    pub fn delay(time: std::time::Duration) {
        if let Ok(watching) = ProcessMonitor::shared() {
            watching.delay(time);
            ProcessMonitor::release(watching);
        }
    }

    /// Delays the notification of caches after the monitor has read an event. For tests.
    #[doc(hidden)]
    pub fn delay_notifications(time: std::time::Duration) {
        if let Ok(watching) = ProcessMonitor::shared() {
            watching.delay_notifications(time);
            ProcessMonitor::release(watching);
        }
    }

    /// For tests: lets whoever has had memory watched go on so much later.
    #[doc(hidden)]
    pub fn pause(time: std::time::Duration) {
        if let Ok(watching) = ProcessMonitor::shared() {
            watching.pause(time);
            ProcessMonitor::release(watching);
        }
    }

    /// Checks whether this process can have a working strict monitor, and returns the reason if not.
    #[must_use]
    pub fn probe() -> crate::register::Probe {
        use crate::register::Probe;
        match ProcessMonitor::shared() {
            Ok(watching) => {
                ProcessMonitor::release(watching);
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
    Busy,
}

/// A receiver of changes. The monitor's thread calls it, and so do requests that stop watching. It must neither
/// allocate nor free memory, nor take a lock under which another thread does.
pub(super) trait Watcher: Send + Sync {
    /// The pages of `span` are gone, or about to go.
    fn changed(&self, span: Span);
}

impl Drop for MonitorHandle {
    fn drop(&mut self) {
        if let Some(watching) = self.watching.take() {
            ProcessMonitor::release(watching);
        }
    }
}

/// Watched memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Watched {
    /// The mappings that contain the memory, unless pages of them have been discarded before.
    pub(super) around: Option<Span>,
    /// The descriptors that watch the memory.
    pub(super) descriptors: DescriptorSet,
}

/// A cache's end of the process's monitor.
pub(super) struct MonitorHandle {
    watching: Option<Arc<ProcessMonitor>>,
    sequences: Option<Arc<ChangeSequences>>,
}

impl MonitorHandle {
    fn start() -> MonitorHandle {
        match ProcessMonitor::shared() {
            Ok(watching) => {
                MonitorHandle { sequences: Some(watching.sequences().clone()), watching: Some(watching) }
            }
            Err(why) => {
                tracing::warn!(
                    why,
                    "memory of this program cannot be watched: what is not hostbuf's is registered anew for each lease, \
                     and never kept. Use hostbuf's memory (PinnedAlloc, HostBuffer), or HOSTBUF_CACHE_MONITOR=explicit \
                     and tell the cache yourself"
                );
                MonitorHandle { watching: None, sequences: None }
            }
        }
    }

    /// Returns a number that each change reported by `set` advances, and that is odd while a change is applied. Read it
    /// before the entry to be validated.
    #[inline(always)]
    pub(super) fn sequence(&self, set: DescriptorSet) -> u64 {
        self.sequences.as_ref().map_or(0, |sequences| sequences.read(set))
    }

    /// Returns whether no change that `set` reports is in progress, and none has been applied since the sequence was
    /// `before`.
    #[inline(always)]
    pub(super) fn unchanged_since(&self, set: DescriptorSet, before: u64) -> bool {
        self.sequences.as_ref().is_some_and(|sequences| sequences.unchanged_since(set, before))
    }

    /// Waits until every change that was under way has been applied: what is live then had not changed before. `false`: there
    /// is no end of changes, or of one; it has waited for about a millisecond.
    pub(super) fn settle(&self, set: DescriptorSet) -> bool {
        self.watching.as_ref().is_some_and(|w| w.settle(set))
    }

    /// Returns whether one mapping of the kernel contains all of `span`.
    pub(super) fn is_one_mapping(&self, span: Span) -> bool {
        self.watching.as_ref().is_some_and(|w| w.is_one_mapping(span))
    }

    /// Watches the whole mappings that contain `span`.
    pub(super) fn watch(&self, span: Span) -> std::result::Result<Watched, Unwatched> {
        self.watching.as_ref().ok_or(Unwatched::Unproven)?.watch(span)
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
    fn invalid_modes_in_the_environment_are_named() {
        assert_eq!(MonitorMode::read(None).unwrap(), MonitorMode::Strict);
        assert_eq!(MonitorMode::read(Some("explicit")).unwrap(), MonitorMode::Explicit);
        assert!(MonitorMode::read(Some("hooks")).unwrap_err().to_string().contains("HOSTBUF_CACHE_MONITOR"));
    }
}
