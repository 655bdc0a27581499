//! The state that the monitor's thread shares with requests.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::time::{Duration, Instant};

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use nix::sys::eventfd::{EfdFlags, EventFd};

use hostbuf_os::poison::IgnorePoison;

use super::change_sequence::{ChangeSequence, ChangeSequences};
use super::descriptor_set::{DescriptorSet, MOST_DESCRIPTORS};
use super::mappings::ProcessMappings;
use super::userfaultfd::Userfaultfd;
use super::watched::Watcher;
use super::watched_ranges::WatchedRanges;
use crate::error::Error;
use crate::span::Span;

/// The epoll data of the descriptor that stops the thread.
pub(super) const STOP: u64 = u64::MAX;
/// The epoll data of the descriptor that makes the thread recompute its timeout.
pub(super) const WAKE: u64 = u64::MAX - 1;
/// The largest number of caches that share the monitor.
const MOST_WATCHERS: usize = 256;

/// A range and the number of the userfaultfd that watches it.
pub(super) type WatchedPiece = (Span, usize);

/// The state that the monitor's thread shares with requests.
pub(super) struct MonitorShared {
    pub(super) sequences: Arc<ChangeSequences>,
    pub(super) mappings: ProcessMappings,
    pub(super) stop: EventFd,
    pub(super) wake: EventFd,
    /// Passed when the thread has made its last allocation.
    pub(super) listening: Barrier,
    pub(super) epoll: Epoll,
    pub(super) ranges: Mutex<WatchedRanges>,
    watchers: Mutex<Vec<Arc<dyn Watcher>>>,
    /// The lock of a thread that applies changes while a sequence is odd: the monitor's thread, or
    /// a thread that unwatches a range. Only the monitor's thread makes system calls while it holds
    /// this lock.
    pub(super) applying: Mutex<()>,
    /// The time since which only the kernel's mark has been seen, and the sequence at that time,
    /// for each descriptor.
    pub(super) marks: Mutex<[Option<(Instant, u64)>; MOST_DESCRIPTORS]>,
    /// The number of the next mapping; modulo the number of descriptors it selects the mapping's
    /// descriptor.
    pub(super) next: AtomicUsize,
    /// True if the warning about a thread without the descriptors has been issued.
    has_warned: AtomicBool,
    pub(super) delays: TestDelays,
}

/// Delays that tests set.
#[derive(Default)]
pub(super) struct TestDelays {
    /// The delay before events are read.
    pub(super) events: TestDelay,
    /// The delay before caches are notified of a change.
    pub(super) notifications: TestDelay,
    /// The pause of a request whose memory is watched now, and of the monitor before it watches a
    /// busy range again.
    pub(super) requests: TestDelay,
}

/// A delay in microseconds, zero unless a test sets it.
#[derive(Default)]
pub(super) struct TestDelay(AtomicU64);

impl TestDelay {
    /// Sets the delay.
    #[cfg(any(test, feature = "testing"))]
    pub(super) fn set(&self, time: Duration) {
        self.0.store(time.as_micros() as u64, Ordering::Relaxed);
    }

    /// Returns the delay.
    pub(super) fn get(&self) -> Duration {
        Duration::from_micros(self.0.load(Ordering::Relaxed))
    }

    /// Sleeps for the time that a test has set.
    pub(super) fn wait(&self) {
        let time = self.get();
        if !time.is_zero() {
            std::thread::sleep(time);
        }
    }
}

impl MonitorShared {
    /// Makes the state of a monitor, and opens its files: the userfaultfds last, by
    /// `open_userfaults`, so that they have the highest numbers.
    ///
    /// # Errors
    /// The reason for people.
    pub(super) fn new(
        mappings: ProcessMappings,
        open_userfaults: impl FnOnce() -> Result<Vec<Userfaultfd>, String>,
    ) -> Result<MonitorShared, String> {
        let event = || {
            EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)
                .map_err(|e| format!("eventfd: {e}"))
        };
        let (stop, wake) = (event()?, event()?);
        let of_epoll = |e| format!("epoll: {e}");
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(of_epoll)?;
        let sequences = ChangeSequences::new(open_userfaults()?);
        fill_epoll(&epoll, &sequences, &stop, &wake).map_err(of_epoll)?;
        Ok(MonitorShared {
            sequences: Arc::new(sequences),
            mappings,
            stop,
            wake,
            listening: Barrier::new(2),
            epoll,
            ranges: Mutex::new(WatchedRanges::new()),
            watchers: Mutex::new(Vec::with_capacity(MOST_WATCHERS)),
            applying: Mutex::new(()),
            marks: Mutex::new([None; MOST_DESCRIPTORS]),
            next: AtomicUsize::new(0),
            has_warned: AtomicBool::new(false),
            delays: TestDelays::default(),
        })
    }

    /// Adds a receiver of changes.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there are [`MOST_WATCHERS`] already: the list never grows, since the
    /// monitor's thread may not wait for an allocation.
    pub(super) fn subscribe(&self, watcher: Arc<dyn Watcher>) -> crate::error::Result<()> {
        let refused = {
            let mut watchers = self.watchers.lock().ignore_poison();
            if watchers.len() < MOST_WATCHERS {
                watchers.push(watcher);
                return Ok(());
            }
            watcher
        };
        drop(refused);
        Err(Error::invalid(format!(
            "{MOST_WATCHERS} caches with the strict monitor are alive in this process, which is the limit: drop one before \
             the next is made, or share one between threads by reference"
        )))
    }

    /// Removes a receiver of changes.
    pub(super) fn unsubscribe(&self, watcher: &dyn Watcher) {
        let gone = {
            let mut watchers = self.watchers.lock().ignore_poison();
            let at = watchers.iter().position(|w| std::ptr::addr_eq(Arc::as_ptr(w), watcher));
            at.map(|at| watchers.swap_remove(at))
        };
        // Dropped here, where freeing is allowed.
        drop(gone);
    }

    /// Reports to all caches that the pages of `span` have changed.
    pub(super) fn notify(&self, span: Span) {
        self.delays.notifications.wait();
        for watcher in self.watchers.lock().ignore_poison().iter() {
            watcher.changed(span);
        }
    }

    /// Reports to all caches that any memory may have changed.
    pub(super) fn notify_of_everything(&self) {
        self.notify(Span::new(1, usize::MAX - 1).expect("a range"));
    }

    /// Runs `change` with odd sequences, so that concurrent hits wait for it. `change` must neither
    /// allocate nor free memory.
    pub(super) fn apply(&self, set: DescriptorSet, change: impl FnOnce()) {
        let _alone = self.applying.lock().ignore_poison();
        self.sequences.in_set(set).for_each(ChangeSequence::step);
        change();
        self.sequences.in_set(set).for_each(ChangeSequence::step);
    }

    /// Warns once that a thread lacks the monitor's descriptors, so that its requests cannot query
    /// the kernel.
    #[cold]
    pub(super) fn warn_of_unknown_descriptor(&self) {
        if !self.has_warned.swap(true, Ordering::Relaxed) {
            let thread = std::thread::current();
            tracing::warn!(
                thread = thread.name().unwrap_or("unnamed"),
                "this thread does not have the userfaultfd that watches this program's memory: the program has closed descriptors \
                 that it does not own, or the thread has unshared its descriptor table before the monitor started (use MonitorMode::\
                 unshare_descriptors). The thread's requests are registered for their leases only"
            );
        }
    }
}

/// Registers the events of the userfaultfds and of both eventfds with `epoll`.
fn fill_epoll(epoll: &Epoll, sequences: &ChangeSequences, stop: &EventFd, wake: &EventFd) -> nix::Result<()> {
    epoll.add(stop, EpollEvent::new(EpollFlags::EPOLLIN, STOP))?;
    epoll.add(wake, EpollEvent::new(EpollFlags::EPOLLIN, WAKE))?;
    for number in sequences.all().iter() {
        epoll.add(&sequences.of(number).userfault, EpollEvent::new(EpollFlags::EPOLLIN, number as u64))?;
    }
    Ok(())
}
