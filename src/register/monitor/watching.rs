//! The process's one monitor. One, since a mapping can be watched by one descriptor only.

#![allow(unsafe_code)]

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::signal::SigSet;

use super::armed::Armed;
use super::kernel::{Change, FEATURES, Messages, Userfault};
use super::proof;
use super::{Unwatched, Watcher};
use crate::os::lineage::Lineage;
use crate::os::maps::{self, Mapped};
use crate::span::Span;

/// How long the kernel may say that a change is under way while it has nothing to tell, before it is not believed any more.
const STUCK: Duration = Duration::from_secs(1);
/// How often a mapping that cannot be watched is looked up again.
const UNCLEAR: u32 = 50;
/// The most caches that share the monitor.
const MOST_WATCHERS: usize = 256;

pub(super) struct Watching {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    lineage: Lineage,
}

struct Shared {
    userfault: Userfault,
    stop: EventFd,
    sequence: AtomicU64,
    /// Whether what it says can be relied on.
    sound: AtomicBool,
    /// Since when the kernel says without reason that a change is under way: milliseconds after `begun`, 0 for not.
    stuck: AtomicU64,
    begun: Instant,
    armed: Mutex<Armed>,
    watchers: Mutex<Vec<Arc<dyn Watcher>>>,
    /// For tests: how late the thread reads.
    late: AtomicU64,
}

/// The one, and how many have it.
static CURRENT: Mutex<Option<(Arc<Watching>, usize)>> = Mutex::new(None);

fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Watching {
    /// The one that runs, or a new one that has proven itself. Each call that succeeds wants a [`release`](Watching::release).
    ///
    /// # Errors
    /// Why there is none.
    pub(super) fn shared() -> Result<Arc<Watching>, String> {
        let mut current = held(&CURRENT);
        // A forked child has no thread of it.
        if let Some((watching, users)) = current.as_mut().filter(|(w, _)| w.lineage.is_here()) {
            *users += 1;
            return Ok(watching.clone());
        }
        let watching = Arc::new(Watching::start(FEATURES)?);
        let parents = current.replace((watching.clone(), 1));
        // Nothing of the parent's is ended here.
        std::mem::forget(parents);
        Ok(watching)
    }

    /// Gives one back. With the last the monitor stops, and no other begins before that is over: what two of them let go of
    /// and watch is the same memory.
    pub(super) fn release(watching: Arc<Watching>) {
        let mut current = held(&CURRENT);
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

    pub(super) fn start(features: u64) -> Result<Watching, String> {
        proof::kernel_is_new_enough()?;
        let userfault = Userfault::open(features).map_err(|e| {
            let mend = match e.raw_os_error() {
                Some(libc::EPERM | libc::EACCES) => "; the container or the seccomp profile forbids it",
                Some(libc::ENOSYS) => "; this kernel is built without it",
                _ => "",
            };
            format!("userfaultfd: {e}{mend}")
        })?;
        let stop = EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)
            .map_err(|e| format!("eventfd: {e}"))?;
        let shared = Arc::new(Shared {
            userfault,
            stop,
            sequence: AtomicU64::new(0),
            sound: AtomicBool::new(true),
            stuck: AtomicU64::new(0),
            begun: Instant::now(),
            armed: Mutex::new(Armed::new()),
            watchers: Mutex::new(Vec::with_capacity(MOST_WATCHERS)),
            late: AtomicU64::new(0),
        });
        let of_thread = shared.clone();
        let thread = std::thread::Builder::new().name("hostbuf-monitor".into()).spawn(move || {
            let _ = SigSet::all().thread_block();
            of_thread.listen();
            // Freed by whoever stops it: this thread frees nothing.
            std::mem::forget(of_thread);
        });
        let thread = thread.map_err(|e| format!("starting the monitor's thread: {e}"))?;
        let watching = Watching { shared, thread: Some(thread), lineage: Lineage::here() };
        proof::prove(&watching)?;
        Ok(watching)
    }

    #[inline]
    pub(super) fn sequence(&self) -> u64 {
        self.shared.sequence.load(Ordering::Acquire)
    }

    /// Only with both looks at the sequence and the question between them nothing is missed: a change whose message has
    /// not been read answers the question, one that has been read moves the sequence.
    #[inline]
    pub(super) fn unchanged_since(&self, before: u64) -> bool {
        if before % 2 == 1 {
            return false;
        }
        if !self.shared.userfault.is_quiet() {
            self.doubt();
            return false;
        }
        fence(Ordering::Acquire);
        self.shared.sequence.load(Ordering::Relaxed) == before && self.shared.sound.load(Ordering::Relaxed)
    }

    /// Waits until every change that was under way has been applied. `false`: that cannot be known.
    pub(super) fn settle(&self) -> bool {
        let mut looks = 0u32;
        while self.shared.sound.load(Ordering::Relaxed) {
            if self.unchanged_since(self.sequence()) {
                return true;
            }
            looks += 1;
            if looks < 100 {
                std::hint::spin_loop();
            } else {
                // The monitor wants a core too.
                std::thread::yield_now();
            }
        }
        false
    }

    /// A failed mremap leaves the kernel's mark for ever on some kernels: then every question is answered "changing", and
    /// nothing can be relied on.
    #[cold]
    fn doubt(&self) {
        let shared = &self.shared;
        let now = shared.begun.elapsed().as_millis() as u64 + 1;
        let mut fds = [PollFd::new(shared.userfault.as_fd(), PollFlags::POLLIN)];
        let pending = poll(&mut fds, PollTimeout::ZERO).unwrap_or(0) > 0;
        if pending || shared.userfault.is_quiet() {
            shared.stuck.store(0, Ordering::Relaxed);
            return;
        }
        let since = shared.stuck.load(Ordering::Relaxed);
        if since == 0 {
            let _ = shared.stuck.compare_exchange(0, now, Ordering::Relaxed, Ordering::Relaxed);
        } else if now - since > STUCK.as_millis() as u64 && shared.sound.swap(false, Ordering::Relaxed) {
            tracing::error!(
                "the kernel says that this program's memory is changing, and never what: nothing of it is kept registered \
                 any more beyond its leases"
            );
            shared.tell(Span::new(1, usize::MAX - 1).expect("a range"));
        }
    }

    pub(super) fn arm(&self, span: Span) -> Result<Option<Span>, Unwatched> {
        let shared = &self.shared;
        let mut unclear = 0;
        // Whoever unmaps goes on when the news is read, not when it is applied: what stands there by now may be another mapping
        // than the one that is still noted as watched.
        while self.settle() {
            let request = {
                let mut armed = held(&shared.armed);
                if let Some((whole, discarded)) = armed.around(span) {
                    return Ok((!discarded).then_some(whole));
                }
                armed.begin(span)
            };
            let Some(request) = request else {
                std::thread::yield_now();
                continue;
            };
            let registered = self.register(span, request);
            let settled = registered.is_ok() && self.settle();
            let mut armed = held(&shared.armed);
            let unchanged = armed.end(request) && settled;
            match registered {
                Ok(whole) if unchanged => {
                    if !armed.add(whole) {
                        return Err(Unwatched::Full);
                    }
                }
                Ok(_) => {}
                Err(Refusal::Certain(why)) => return Err(why),
                // The list of mappings is no picture of one moment: others change it while it is read.
                Err(Refusal::Unclear) => {
                    unclear += 1;
                    if unclear > UNCLEAR {
                        return Err(Unwatched::Memory);
                    }
                }
            }
        }
        Err(Unwatched::Unproven)
    }

    /// Tells the kernel. A change before it knew is not told: then the mapping is another one at the second look; a hole that
    /// was there meanwhile is closed by the second telling. A change afterwards disturbs the request.
    fn register(&self, span: Span, request: usize) -> Result<Span, Refusal> {
        let tell = |whole| {
            self.shared.userfault.register(whole).map_err(|e| match e.raw_os_error() {
                Some(libc::ENOMEM) => Refusal::Certain(Unwatched::Full),
                // Another one has it: somebody else's userfaultfd.
                Some(libc::EBUSY) => Refusal::Certain(Unwatched::Memory),
                _ => Refusal::Unclear,
            })
        };
        let whole = watchable(span)?;
        held(&self.shared.armed).extend(request, whole);
        tell(whole)?;
        if watchable(span)? != whole {
            return Err(Refusal::Unclear);
        }
        tell(whole)?;
        Ok(whole)
    }

    pub(super) fn subscribe(&self, watcher: Arc<dyn Watcher>) {
        let mut watchers = held(&self.shared.watchers);
        assert!(watchers.len() < MOST_WATCHERS, "more than {MOST_WATCHERS} caches share the monitor");
        watchers.push(watcher);
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
        self.shared.late.store(time.as_micros() as u64, Ordering::Relaxed);
    }
}

/// Why memory is not watched, or not yet.
enum Refusal {
    Certain(Unwatched),
    /// The mappings changed while they were looked at; or nothing is mapped there at all.
    Unclear,
}

/// The whole mappings that `span` lies in, when all of them can be watched.
fn watchable(span: Span) -> Result<Span, Refusal> {
    let mut whole: Option<Span> = None;
    let mut all = true;
    each_mapping(|one, mapping| {
        if one.overlaps(span) {
            // Files and shared memory change by other ways too, which nobody tells.
            let own = mapping.inode == 0 && mapping.private && !mapping.path.starts_with(b"[v");
            whole = match whole {
                None => Some(one),
                Some(so_far) if so_far.end() == one.start() => {
                    Span::new(so_far.start(), so_far.len() + one.len()).ok()
                }
                Some(so_far) => Some(so_far),
            };
            all &= own;
        }
        one.start() < span.end()
    });
    if !all {
        return Err(Refusal::Certain(Unwatched::Memory));
    }
    whole.filter(|whole| whole.contains(span)).ok_or(Refusal::Unclear)
}

fn each_mapping(mut each: impl FnMut(Span, Mapped<'_>) -> bool) {
    // Without /proc nothing can be looked up, and so nothing watched.
    let _ = maps::each(|mapping| match Span::new(mapping.start, mapping.end - mapping.start) {
        Ok(span) => each(span, mapping),
        Err(_) => true,
    });
}

impl Shared {
    fn listen(&self) {
        let mut messages = Messages::new();
        loop {
            let mut fds = [
                PollFd::new(self.userfault.as_fd(), PollFlags::POLLIN),
                PollFd::new(self.stop.as_fd(), PollFlags::POLLIN),
            ];
            let _ = poll(&mut fds, PollTimeout::NONE);
            if fds[1].any().unwrap_or(false) {
                return;
            }
            let late = self.late.load(Ordering::Relaxed);
            if late > 0 {
                std::thread::sleep(Duration::from_micros(late));
            }
            // Odd before the read: from the read on, whoever changes the memory goes on.
            self.sequence.fetch_add(1, Ordering::AcqRel);
            while self.userfault.read(&mut messages) {
                for (span, change) in messages.iter() {
                    match change {
                        Change::Gone => held(&self.armed).remove(span),
                        Change::Discarded => held(&self.armed).discard(span),
                    }
                    self.tell(span);
                }
            }
            self.sequence.fetch_add(1, Ordering::AcqRel);
        }
    }

    fn tell(&self, span: Span) {
        for watcher in held(&self.watchers).iter() {
            watcher.changed(span);
        }
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        if !self.lineage.is_here() {
            // The parent's.
            std::mem::forget(thread);
            return;
        }
        // Before the thread stops: an unmapping that nobody hears of would wait for ever, and so would one after the
        // descriptor is closed while a forked child still has it.
        let ranges: Vec<Span> = {
            let armed = held(&self.shared.armed);
            armed.iter().collect()
        };
        for span in ranges {
            // Where a part is not mapped any more the rest is still to be let go.
            if self.shared.userfault.unregister(span).is_err() {
                each_mapping(|part, _| {
                    if part.overlaps(span) {
                        let _ = self.shared.userfault.unregister(part);
                    }
                    true
                });
            }
        }
        let _ = self.shared.stop.write(1);
        let _ = thread.join();
        // The reference that the thread left.
        // SAFETY: it was forgotten there, and the thread has ended.
        unsafe { Arc::decrement_strong_count(Arc::as_ptr(&self.shared)) };
    }
}
