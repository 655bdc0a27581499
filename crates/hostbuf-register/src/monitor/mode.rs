//! The choice between the strict and the explicit monitor.

use super::handle::MonitorHandle;
use super::{current, process_monitor};
use crate::environment;
use crate::error::{Error, Result};
use crate::registrar::Probe;
use hostbuf_os::descriptors;

/// The way in which a cache learns of changes of foreign memory, which is memory that hostbuf has
/// not allocated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum MonitorMode {
    /// The kernel reports changes with userfaultfd, and every hit checks whether a change is in
    /// progress. No library call is intercepted, so changes are seen whichever library makes them.
    /// The [crate](crate) lists the exceptions.
    ///
    /// Without a working monitor the cache keeps no registrations of foreign memory, and a warning
    /// gives the reason. A process has one monitor. If it contains several copies of this library,
    /// the first one that makes a strict cache has the monitor until its last strict cache is
    /// dropped, and the caches that another copy makes meanwhile stay without.
    #[default]
    Strict,
    /// As [`Strict`](MonitorMode::Strict), but no cache is made without a working monitor:
    /// [`RegistrationCache::new`](crate::RegistrationCache::new) fails with [`Error::OtherCopy`] if
    /// another copy of this library in the process has it, and with [`Error::Unsupported`] if the
    /// process can have none.
    Required,
    /// The program calls [`invalidate`](crate::RegistrationCache::invalidate) before the
    /// pages change. Foreign memory is registered exactly as requested, since the cache does not
    /// know where it ends. A program that sends a growing window first calls
    /// [`keep`](crate::RegistrationCache::keep) for the whole of it.
    Explicit,
}

impl MonitorMode {
    /// Reads `HOSTBUF_CACHE_MONITOR`: `strict` (the default), `required` or `explicit`.
    ///
    /// # Errors
    /// [`Error::Invalid`] for any other value, and for an invalid `HOSTBUF_CACHE_DESCRIPTORS`.
    pub fn from_environment() -> Result<MonitorMode> {
        // The monitor reads this variable when it starts, which may be in a place that cannot
        // return an error.
        process_monitor::descriptors_from_environment()?;
        MonitorMode::read(environment::text("HOSTBUF_CACHE_MONITOR")?.as_deref())
    }

    fn read(value: Option<&str>) -> Result<MonitorMode> {
        match value.map(str::trim) {
            None | Some("" | "strict") => Ok(MonitorMode::Strict),
            Some("required") => Ok(MonitorMode::Required),
            Some("explicit") => Ok(MonitorMode::Explicit),
            Some(other) => {
                let what = format!(
                    "invalid HOSTBUF_CACHE_MONITOR \"{other}\": expected strict, required or explicit"
                );
                Err(Error::invalid(what))
            }
        }
    }

    /// Gives the calling thread its own file descriptor table (`unshare(2)` with CLONE_FILES), so
    /// that hits on foreign memory scale with the number of threads.
    ///
    /// Each such hit makes a system call on a userfaultfd. If threads share a descriptor table, the
    /// kernel counts a reference to the file in each call, so threads that use the same userfaultfd
    /// contend for one cache line. A thread with its own table skips the count. Memory is spread
    /// over up to 16 userfaultfds, so this matters if many threads send from one mapping: call it
    /// once at the start of each communication thread that opens no descriptors itself.
    ///
    /// The new table has copies of all descriptors of the program, with the consequences of
    /// `unshare(2)`. Descriptors that other threads open later do not exist in this thread.
    /// Descriptors that they close stay open here: a pipe does not reach its end of file, and a
    /// closed connection sends no FIN, until this thread ends or closes its copy. Descriptors that
    /// this thread closes (for example by dropping the cache of a device) stay open in the
    /// program's table. Threads that this thread starts share its table. POSIX record locks
    /// (`fcntl` with F_SETLK) belong to a table, so those of this thread conflict with those of the
    /// program's other threads.
    ///
    /// The call starts the monitor if necessary and keeps it running until the process ends, since
    /// the thread would not have the descriptors of a later monitor. A thread that has unshared its
    /// table itself before the monitor started lacks these descriptors too; its requests are
    /// registered for their leases only (`Stats::unproven`).
    ///
    /// # Errors
    /// [`Error::OtherCopy`] if another copy of this library in the process has the monitor;
    /// [`Error::Unsupported`] if the process can have none, if the kernel refuses to unshare the
    /// table, or if the process has opened `/dev/xpmem`: when a thread with its own table ends,
    /// that driver ends all XPMEM segments and attachments of the process, with which many MPIs
    /// send between the ranks of a host.
    #[doc(alias = "CLONE_FILES")]
    pub fn unshare_descriptors() -> Result<()> {
        const WHAT: &str = "a separate file descriptor table for this thread";
        let unsupported = |why: String| Error::Unsupported { what: WHAT.into(), why };
        if descriptors::has_xpmem() {
            let why = "this process has opened /dev/xpmem, whose driver would end the process's segments and attachments when \
                       this thread ends: start the MPI without XPMEM, or leave the table shared";
            return Err(unsupported(why.into()));
        }
        current::keep_running().map_err(|none| none.into_error(WHAT))?;
        descriptors::unshare().map_err(|e| unsupported(format!("unshare(CLONE_FILES): {e}")))
    }

    /// Connects to the process's monitor, unless the mode is explicit.
    ///
    /// # Errors
    /// The reason why there is no monitor, if one is required.
    pub(crate) fn watch(self) -> Result<Option<MonitorHandle>> {
        match self {
            MonitorMode::Explicit => Ok(None),
            MonitorMode::Strict => Ok(Some(MonitorHandle::start())),
            MonitorMode::Required => MonitorHandle::start_required().map(Some),
        }
    }

    /// Checks whether this process can have a working strict monitor, and returns the reason if
    /// not.
    #[must_use]
    pub fn probe() -> Probe {
        match current::acquire() {
            Ok(monitor) => {
                current::release(monitor);
                Probe::Ready("userfaultfd reports changes of this process's memory".into())
            }
            Err(none) => Probe::Missing(none.to_string()),
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
        assert_eq!(MonitorMode::read(Some("required")).unwrap(), MonitorMode::Required);
        assert!(MonitorMode::read(Some("hooks")).unwrap_err().to_string().contains("HOSTBUF_CACHE_MONITOR"));
    }
}
