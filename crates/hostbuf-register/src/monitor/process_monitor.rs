//! The process's monitor, which all caches share, since only one userfaultfd can watch a mapping.

use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::resource::{Resource, getrlimit};
use nix::sys::signal::SigSet;

use super::change_sequence::{ChangeSequences, DescriptorSet, MOST_DESCRIPTORS};
use super::events::{STOP, WAKE};
use super::mappings::Mappings;
use super::self_test;
use super::userfaultfd::{FEATURES, Userfaultfd};
use super::watched_ranges::WatchedRanges;
use super::{Unwatched, Watched, Watcher};
use crate::error::Error;
use crate::os::descriptors;
use crate::os::forking::hold_around_fork;
use crate::os::lineage::Lineage;
use crate::os::thread::{self, Thread};
use crate::register::environment;
use crate::span::Span;

/// The number of times that everything is unwatched when the monitor stops, since memory may move meanwhile.
const LAST_LOOKS: u32 = 1000;
/// The number of free descriptors to leave to the program. If there would be fewer, the monitor uses one userfaultfd.
const SPARE: u64 = 64;
/// The most caches that share the monitor.
const MOST_WATCHERS: usize = 256;

pub(super) struct ProcessMonitor {
    pub(super) shared: Arc<MonitorShared>,
    thread: Option<Thread>,
    lineage: Lineage,
    /// True if [`keep_running`](ProcessMonitor::keep_running) holds a reference, which is never released.
    kept: AtomicBool,
}

/// A range and the number of the userfaultfd that watches it.
pub(super) type WatchedPiece = (Span, usize);

/// The state that the monitor's thread shares with requests.
pub(super) struct MonitorShared {
    pub(super) sequences: Arc<ChangeSequences>,
    pub(super) mappings: Mappings,
    pub(super) stop: EventFd,
    /// The kernel's number of `stop`, if it has one.
    stop_number: Option<u64>,
    pub(super) wake: EventFd,
    /// Passed when the thread has made its last allocation.
    pub(super) listening: Barrier,
    pub(super) epoll: Epoll,
    pub(super) armed: Mutex<WatchedRanges>,
    pub(super) watchers: Mutex<Vec<Arc<dyn Watcher>>>,
    /// Held while changes are applied and a sequence is odd, by the monitor's thread or by a thread that unwatches a
    /// range. Only the monitor's thread makes system calls while it holds this lock.
    pub(super) applying: Mutex<()>,
    /// For each descriptor, the time since which only the kernel's mark has been seen, and the sequence at that time.
    pub(super) marks: Mutex<[Option<(Instant, u64)>; MOST_DESCRIPTORS]>,
    /// The number of the next mapping; modulo the number of descriptors it selects the mapping's descriptor.
    pub(super) next: AtomicUsize,
    /// True if the warning about a thread without the descriptors has been issued.
    unknown: AtomicBool,
    /// Delays in microseconds, for tests: of reading events, of notifying caches, and the pause of a request and of
    /// `watch_again` before they go on.
    pub(super) event_delay: AtomicU64,
    pub(super) notify_delay: AtomicU64,
    pub(super) pause: AtomicU64,
}

type Current = Option<(Arc<ProcessMonitor>, usize)>;

/// The one, and how many have it.
static CURRENT: Mutex<Current> = Mutex::new(None);

fn current() -> MutexGuard<'static, Current> {
    hold_around_fork!(CURRENT: Current);
    held(&CURRENT)
}

pub(super) fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the number of userfaultfds from `HOSTBUF_CACHE_DESCRIPTORS`, or [`MOST_DESCRIPTORS`] if it is not set.
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

/// Opens `wanted` userfaultfds, or a single one if that leaves fewer than [`SPARE`] descriptors to the program.
fn open_userfaults(features: u64, wanted: usize) -> Result<Vec<Userfaultfd>, String> {
    let mut userfaults = Vec::with_capacity(wanted);
    while userfaults.len() < wanted {
        match Userfaultfd::open(features) {
            Ok(userfault) => userfaults.push(userfault),
            Err(e) if userfaults.is_empty() => {
                let mend = match e.raw_os_error() {
                    Some(libc::EPERM | libc::EACCES) => "; the container or the seccomp profile forbids it",
                    Some(libc::ENOSYS) => "; this kernel is built without it",
                    _ => "",
                };
                return Err(format!("userfaultfd: {e}{mend}"));
            }
            Err(_) => break,
        }
    }
    // The program needs descriptors too, so a process with few of them gets a single userfaultfd. These are the last
    // descriptors that the monitor opens.
    let last = userfaults.last().map_or(0, |userfault| userfault.as_fd().as_raw_fd() as u64);
    let limit = getrlimit(Resource::RLIMIT_NOFILE).map_or(u64::MAX, |(soft, _)| soft);
    if userfaults.len() < wanted || last + SPARE >= limit {
        userfaults.truncate(1);
    }
    Ok(userfaults)
}

/// Has `epoll` wait for events of the userfaultfds, for the end, and for a call to look again.
fn fill_epoll(epoll: &Epoll, sequences: &ChangeSequences, stop: &EventFd, wake: &EventFd) -> nix::Result<()> {
    epoll.add(stop, EpollEvent::new(EpollFlags::EPOLLIN, STOP))?;
    epoll.add(wake, EpollEvent::new(EpollFlags::EPOLLIN, WAKE))?;
    for number in sequences.all().iter() {
        epoll.add(&sequences.of(number).userfault, EpollEvent::new(EpollFlags::EPOLLIN, number as u64))?;
    }
    Ok(())
}

impl ProcessMonitor {
    /// The one that runs, or a new one that has proven itself. Each call that succeeds wants a [`release`](ProcessMonitor::release).
    ///
    /// # Errors
    /// Why there is none.
    pub(super) fn shared() -> Result<Arc<ProcessMonitor>, String> {
        let mut current = current();
        // A forked child has no thread of it.
        if let Some((watching, users)) = current.as_mut().filter(|(w, _)| w.lineage.is_here()) {
            *users += 1;
            return Ok(watching.clone());
        }
        let watching = Arc::new(ProcessMonitor::start(FEATURES)?);
        let parents = current.replace((watching.clone(), 1));
        // Nothing of the parent's is ended here.
        std::mem::forget(parents);
        Ok(watching)
    }

    /// Keeps the monitor running until the process ends.
    ///
    /// # Errors
    /// As [`shared`](ProcessMonitor::shared).
    pub(super) fn keep_running() -> Result<(), String> {
        let watching = ProcessMonitor::shared()?;
        if watching.kept.swap(true, Ordering::Relaxed) {
            ProcessMonitor::release(watching);
        } else {
            // This reference is never released, so the monitor keeps running.
            std::mem::forget(watching);
        }
        Ok(())
    }

    /// Gives one back. With the last the monitor stops, and no other begins before that is over: what two of them let go of
    /// and watch is the same memory.
    pub(super) fn release(watching: Arc<ProcessMonitor>) {
        let mut current = current();
        drop(watching);
        let last = match current.as_mut() {
            Some((watching, users)) if watching.lineage.is_here() => {
                *users -= 1;
                *users == 0
            }
            _ => false,
        };
        if last {
            drop(current.take());
        }
    }

    pub(super) fn start(features: u64) -> Result<ProcessMonitor, String> {
        self_test::kernel_is_new_enough()?;
        let wanted = descriptors_from_environment().map_err(|e| e.to_string())?;
        let mappings =
            Mappings::open().map_err(|e| format!("/proc/self/maps, where the mappings are listed: {e}"))?;
        let event = || {
            EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)
                .map_err(|e| format!("eventfd: {e}"))
        };
        let (stop, wake) = (event()?, event()?);
        let of_epoll = |e| format!("epoll: {e}");
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(of_epoll)?;
        // The userfaultfds are opened last, so that the other files of the monitor get descriptors first.
        let sequences = ChangeSequences::new(open_userfaults(features, wanted)?);
        fill_epoll(&epoll, &sequences, &stop, &wake).map_err(of_epoll)?;
        let shared = Arc::new(MonitorShared {
            sequences: Arc::new(sequences),
            mappings,
            stop_number: descriptors::eventfd_number(stop.as_fd()).ok().flatten(),
            stop,
            wake,
            listening: Barrier::new(2),
            epoll,
            armed: Mutex::new(WatchedRanges::new()),
            watchers: Mutex::new(Vec::with_capacity(MOST_WATCHERS)),
            applying: Mutex::new(()),
            marks: Mutex::new([None; MOST_DESCRIPTORS]),
            next: AtomicUsize::new(0),
            unknown: AtomicBool::new(false),
            event_delay: AtomicU64::new(0),
            notify_delay: AtomicU64::new(0),
            pause: AtomicU64::new(0),
        });
        let of_thread = shared.clone();
        let thread = thread::spawn(c"hostbuf-monitor", move || {
            let _ = SigSet::all().thread_block();
            // Whoever stops it waits for it and has the last reference: nothing is freed here.
            of_thread.listen();
        });
        let thread = thread.map_err(|e| format!("starting the monitor's thread: {e}"))?;
        shared.listening.wait();
        let watching = ProcessMonitor {
            shared,
            thread: Some(thread),
            lineage: Lineage::here(),
            kept: AtomicBool::new(false),
        };
        self_test::prove(&watching)?;
        Ok(watching)
    }

    pub(super) fn sequences(&self) -> &Arc<ChangeSequences> {
        &self.shared.sequences
    }

    /// Returns the sequences of all descriptors as one number.
    pub(super) fn sequence(&self) -> u64 {
        self.sequences().read(self.sequences().all())
    }

    pub(super) fn unchanged_since(&self, before: u64) -> bool {
        self.sequences().unchanged_since(self.sequences().all(), before)
    }

    /// Waits until every change that was in progress in memory that `set` watches has been applied. Returns false if
    /// the wait has ended without that: other threads change memory without a pause, or one change takes long.
    pub(super) fn settle(&self, set: DescriptorSet) -> bool {
        self.shared.settle(set).is_ok()
    }

    /// Whether all of `span` lies in one mapping.
    pub(super) fn is_one_mapping(&self, span: Span) -> bool {
        self.shared.mappings.is_one(span)
    }

    /// Watches the whole mappings that contain `span`.
    pub(super) fn watch(&self, span: Span) -> Result<Watched, Unwatched> {
        self.shared.watch(span)
    }

    /// # Errors
    /// [`Error::Invalid`] when it is one too many: the monitor's thread has no room, and makes none.
    pub(super) fn subscribe(&self, watcher: Arc<dyn Watcher>) -> crate::error::Result<()> {
        let refused = {
            let mut watchers = held(&self.shared.watchers);
            if watchers.len() < MOST_WATCHERS {
                watchers.push(watcher);
                return Ok(());
            }
            watcher
        };
        drop(refused);
        Err(Error::invalid(format!(
            "{MOST_WATCHERS} caches with the strict monitor are alive in this process, which is the most: drop one before \
             the next is made, or share one, which threads may do by reference"
        )))
    }

    pub(super) fn unsubscribe(&self, watcher: &dyn Watcher) {
        let gone = {
            let mut watchers = held(&self.shared.watchers);
            let at = watchers.iter().position(|w| std::ptr::addr_eq(Arc::as_ptr(w), watcher));
            at.map(|at| watchers.swap_remove(at))
        };
        // Dropped here, where freeing is allowed.
        drop(gone);
    }

    /// For tests: lets the thread read so much later.
    pub(super) fn delay(&self, time: Duration) {
        self.shared.event_delay.store(time.as_micros() as u64, Ordering::Relaxed);
    }

    /// Delays the notification of caches, for tests.
    pub(super) fn delay_notifications(&self, time: Duration) {
        self.shared.notify_delay.store(time.as_micros() as u64, Ordering::Relaxed);
    }

    /// For tests: lets requests go on so much later, and the monitor with busy pages.
    pub(super) fn pause(&self, time: Duration) {
        self.shared.pause.store(time.as_micros() as u64, Ordering::Relaxed);
    }
}

impl MonitorShared {
    /// Pauses for the time that a test has set.
    pub(super) fn pause_for_tests(&self) {
        let pause = self.pause.load(Ordering::Relaxed);
        if pause > 0 {
            std::thread::sleep(Duration::from_micros(pause));
        }
    }

    /// Warns once that a thread lacks the monitor's descriptors, so that its requests cannot query the kernel.
    #[cold]
    pub(super) fn warn_of_unknown_descriptor(&self) {
        if !self.unknown.swap(true, Ordering::Relaxed) {
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

impl Drop for ProcessMonitor {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        if !self.lineage.is_here() {
            // The parent's.
            std::mem::forget(thread);
            return;
        }
        held(&self.shared.armed).busy.close();
        // Where nothing can be opened, the descriptor is taken for the monitor's.
        let number = descriptors::eventfd_number(self.shared.stop.as_fd());
        let known = self.shared.stop_number;
        let can_stop = known.is_none() || number.map_or(true, |number| number == known);
        if !can_stop {
            self.shared.warn_of_unknown_descriptor();
        }
        if !can_stop || self.shared.verify(self.sequences().all()).is_err() {
            // A thread without the descriptors can neither stop the monitor nor close its files.
            std::mem::forget((thread, self.shared.clone()));
            return;
        }
        // Before the thread stops: an unmapping that nobody hears of would wait for ever, and so would one after the
        // descriptor is closed while a forked child still has it.
        for _ in 0..LAST_LOOKS {
            let before = self.sequence();
            self.shared.unwatch_all();
            // Else something may have moved to where this look had been already.
            if self.unchanged_since(before) {
                break;
            }
            std::thread::yield_now();
        }
        let _ = self.shared.stop.write(1);
        thread.join();
    }
}
