//! The process's monitor, which all caches share, since only one userfaultfd can watch a mapping.

use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::sys::resource::{Resource, getrlimit};
use nix::sys::signal::SigSet;

use hostbuf_os::poison::IgnorePoison;

use super::change_sequence::ChangeSequences;
use super::descriptor_set::{DescriptorSet, MOST_DESCRIPTORS};
use super::mappings::ProcessMappings;
use super::monitor_shared::MonitorShared;
#[cfg(any(test, feature = "testing"))]
use super::monitor_shared::TestDelays;
use super::userfaultfd::Userfaultfd;
use super::watched::{Unwatched, Watched, Watcher};
use crate::environment;
use crate::error::Error;
use crate::span::Span;
use hostbuf_os::descriptors;
use hostbuf_os::fork_guard::ForkGuard;
use hostbuf_os::thread::{self, Thread};

/// The largest number of passes in which everything is unwatched when the monitor stops: memory
/// that moves meanwhile needs another pass.
const UNWATCH_PASSES: u32 = 1000;
/// The number of free descriptors to leave to the program. If there would be fewer, the monitor
/// uses one userfaultfd.
const SPARE: u64 = 64;

/// The process's monitor: its thread, and the state that the thread shares with requests.
pub(super) struct ProcessMonitor {
    pub(super) shared: Arc<MonitorShared>,
    thread: Option<Thread>,
    fork_guard: ForkGuard,
    /// The kernel's number of the eventfd that stops the thread, if it has one.
    stop_number: Option<u64>,
    /// True if a reference is held until the process ends.
    kept: AtomicBool,
}

/// Returns the number of userfaultfds from `HOSTBUF_CACHE_DESCRIPTORS`, or [`MOST_DESCRIPTORS`] if
/// it is not set.
pub(super) fn descriptors_from_environment() -> crate::error::Result<usize> {
    const NAME: &str = "HOSTBUF_CACHE_DESCRIPTORS";
    let Some(text) = environment::text(NAME)? else { return Ok(MOST_DESCRIPTORS) };
    match text.trim().parse() {
        Ok(count) if (1..=MOST_DESCRIPTORS).contains(&count) => Ok(count),
        _ => Err(Error::invalid(format!(
            "invalid {NAME} \"{text}\": expected a number from 1 to {MOST_DESCRIPTORS}"
        ))),
    }
}

/// Opens `wanted` userfaultfds, or a single one if that leaves fewer than [`SPARE`] descriptors to
/// the program.
fn open_userfaults(features: u64, wanted: usize) -> Result<Vec<Userfaultfd>, String> {
    let mut userfaults = Vec::with_capacity(wanted);
    while userfaults.len() < wanted {
        match Userfaultfd::open(features) {
            Ok(userfault) => userfaults.push(userfault),
            Err(e) if userfaults.is_empty() => {
                let remedy = match e.raw_os_error() {
                    Some(libc::EPERM | libc::EACCES) => {
                        "; the container or the seccomp profile forbids userfaultfd"
                    }
                    Some(libc::ENOSYS) => "; this kernel is built without userfaultfd",
                    _ => "",
                };
                return Err(format!("userfaultfd: {e}{remedy}"));
            }
            Err(_) => break,
        }
    }
    // The program needs descriptors too, so a process with few of them gets a single userfaultfd.
    // These are the last descriptors that the monitor opens.
    let last = userfaults.last().map_or(0, |userfault| userfault.as_fd().as_raw_fd() as u64);
    let limit = getrlimit(Resource::RLIMIT_NOFILE).map_or(u64::MAX, |(soft, _)| soft);
    if userfaults.len() < wanted || last + SPARE >= limit {
        userfaults.truncate(1);
    }
    Ok(userfaults)
}

impl ProcessMonitor {
    /// Starts a monitor with these features of userfaultfd. It is not known yet to see every
    /// change.
    ///
    /// # Errors
    /// The reason for people.
    pub(super) fn start(features: u64) -> Result<ProcessMonitor, String> {
        let wanted = descriptors_from_environment().map_err(|e| e.to_string())?;
        let mappings =
            ProcessMappings::open().map_err(|e| format!("/proc/self/maps, which lists the mappings: {e}"))?;
        let shared = Arc::new(MonitorShared::new(mappings, || open_userfaults(features, wanted))?);
        let stop_number = descriptors::eventfd_number(shared.stop.as_fd()).ok().flatten();
        let for_thread = shared.clone();
        let thread = thread::spawn(c"hostbuf-monitor", move || {
            // The application's signals are for its own threads.
            let _ = SigSet::all().thread_block();
            // The thread that stops the monitor joins this one and drops the last reference, so
            // nothing is freed here.
            for_thread.listen();
        });
        let thread = thread.map_err(|e| format!("starting the monitor's thread: {e}"))?;
        shared.listening.wait();
        let (fork_guard, kept) = (ForkGuard::current(), AtomicBool::new(false));
        Ok(ProcessMonitor { shared, thread: Some(thread), fork_guard, stop_number, kept })
    }

    /// Returns whether this is the process that started the monitor, and not a forked child without
    /// its thread.
    pub(super) fn is_current(&self) -> bool {
        self.fork_guard.is_current()
    }

    /// Records that a reference is held until the process ends. Returns whether one was held
    /// already.
    pub(super) fn mark_kept(&self) -> bool {
        self.kept.swap(true, Ordering::Relaxed)
    }

    /// Returns the change sequences of the monitor's userfaultfds.
    pub(super) fn sequences(&self) -> &Arc<ChangeSequences> {
        &self.shared.sequences
    }

    /// Returns the sequences of all descriptors as one number.
    pub(super) fn sequence(&self) -> u64 {
        self.sequences().read(self.sequences().all())
    }

    /// Returns whether no change is in progress, and none has been applied since the sequence was
    /// `before`.
    pub(super) fn unchanged_since(&self, before: u64) -> bool {
        self.sequences().unchanged_since(self.sequences().all(), before)
    }

    /// Waits until every change that was in progress in memory that `set` watches has been applied.
    /// Returns false if the wait has ended without that: other threads change memory without a
    /// pause, or one change takes long.
    pub(super) fn settle(&self, set: DescriptorSet) -> bool {
        self.shared.settle(set).is_ok()
    }

    /// Returns whether all of `span` lies in one mapping.
    pub(super) fn is_one_mapping(&self, span: Span) -> bool {
        self.shared.mappings.is_one(span)
    }

    /// Watches the whole mappings that contain `span`.
    pub(super) fn watch(&self, span: Span) -> Result<Watched, Unwatched> {
        self.shared.watch(span)
    }

    /// Adds a receiver of changes.
    ///
    /// # Errors
    /// [`Error::Invalid`] if too many caches share the monitor.
    pub(super) fn subscribe(&self, watcher: Arc<dyn Watcher>) -> crate::error::Result<()> {
        self.shared.subscribe(watcher)
    }

    /// Removes a receiver of changes.
    pub(super) fn unsubscribe(&self, watcher: &dyn Watcher) {
        self.shared.unsubscribe(watcher);
    }

    /// Returns the delays that tests set.
    #[cfg(any(test, feature = "testing"))]
    pub(super) fn delays(&self) -> &TestDelays {
        &self.shared.delays
    }
}

impl Drop for ProcessMonitor {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        if !self.fork_guard.is_current() {
            // The thread is the parent's.
            std::mem::forget(thread);
            return;
        }
        self.shared.ranges.lock().ignore_poison().busy.close();
        // If no file can be opened, the number is unknown, and the descriptor counts as the
        // monitor's.
        let number = descriptors::eventfd_number(self.shared.stop.as_fd());
        let known = self.stop_number;
        let can_stop = known.is_none() || number.map_or(true, |number| number == known);
        if !can_stop {
            self.shared.warn_of_unknown_descriptor();
        }
        if !can_stop || self.shared.verify(self.sequences().all()).is_err() {
            // A thread without the descriptors can neither stop the monitor nor close its files.
            std::mem::forget((thread, self.shared.clone()));
            return;
        }
        // Everything is unwatched before the thread stops: an unmap whose event nobody reads would
        // wait for ever, and so would one after the descriptor is closed, if a forked child still
        // has it.
        for _ in 0..UNWATCH_PASSES {
            let before = self.sequence();
            self.shared.unwatch_all();
            // Otherwise a mapping may have moved to a place that this pass had left behind.
            if self.unchanged_since(before) {
                break;
            }
            std::thread::yield_now();
        }
        let _ = self.shared.stop.write(1);
        thread.join();
    }
}
