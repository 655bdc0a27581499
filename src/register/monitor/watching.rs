//! The process's one monitor. One, since a mapping can be watched by one descriptor only.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::signal::SigSet;

use super::armed::Armed;
use super::kernel::{self, Change, FEATURES, Messages, Userfault};
use super::mappings::{Mappings, Refusal, is_own};
use super::proof;
use super::recent::Pages;
use super::{Unwatched, Watcher};
use crate::error::Error;
use crate::os::forking::hold_around_fork;
use crate::os::lineage::Lineage;
use crate::span::Span;

/// How long the kernel may say that a change is under way while it has nothing to tell, before nothing is kept any more until
/// the change is over.
const STUCK: Duration = Duration::from_secs(1);
/// How long one look waits for others' changes to be over: longer than the monitor takes for one, and shorter than what most
/// registrations cost.
const PATIENCE: Duration = Duration::from_millis(1);
/// How often it looks at least, and without giving up its core.
const LOOKS: u32 = 100;
/// How long it waits for the monitor's thread to get a core: some turns of the scheduler.
const PATIENCE_WITH_THREAD: Duration = Duration::from_millis(20);
/// How often a mapping that cannot be watched is looked up again.
const UNCLEAR: u32 = 50;
/// How often everything is let go of at the end, while memory moves.
const LAST_LOOKS: u32 = 1000;
/// The most caches that share the monitor.
const MOST_WATCHERS: usize = 256;

pub(super) struct Watching {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    lineage: Lineage,
}

/// What a hit looks at: all in one line, since after a system call each page that is looked at costs.
#[repr(align(64))]
pub(super) struct Pulse {
    sequence: AtomicU64,
    /// Whether what it says can be relied on.
    sound: AtomicBool,
    /// How many threads are letting go of ranges: of those the kernel tells nothing any more, and that is not known yet.
    letting_go: AtomicU32,
    userfault: Userfault,
}

impl Pulse {
    #[inline(always)]
    pub(super) fn sequence(&self) -> u64 {
        self.sequence.load(Ordering::Acquire)
    }

    /// Only with both looks at the sequence and the question between them nothing is missed: a change whose message has
    /// not been read answers the question, one that has been read moves the sequence.
    #[inline(always)]
    pub(super) fn unchanged_since(&self, before: u64) -> bool {
        if before % 2 == 1 || !self.userfault.is_quiet() || self.letting_go.load(Ordering::Acquire) > 0 {
            return false;
        }
        fence(Ordering::Acquire);
        self.sequence.load(Ordering::Relaxed) == before && self.sound.load(Ordering::Relaxed)
    }
}

struct Shared {
    pulse: Arc<Pulse>,
    mappings: Mappings,
    stop: EventFd,
    armed: Mutex<Armed>,
    watchers: Mutex<Vec<Arc<dyn Watcher>>>,
    /// Held while changes are applied, by the monitor's thread or by one that lets a range go: the sequence is odd then. Never
    /// during a system call of anybody but the monitor.
    applying: Mutex<()>,
    /// Since when nothing but the kernel's mark has been seen, and the sequence then.
    mark: Mutex<Option<(Instant, u64)>>,
    /// For tests: how late the thread reads, and how late a request goes on, in microseconds.
    late: AtomicU64,
    pause: AtomicU64,
}

type Current = Option<(Arc<Watching>, usize)>;

/// The one, and how many have it.
static CURRENT: Mutex<Current> = Mutex::new(None);

fn current() -> MutexGuard<'static, Current> {
    hold_around_fork!(CURRENT: Current);
    held(&CURRENT)
}

fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Watching {
    /// The one that runs, or a new one that has proven itself. Each call that succeeds wants a [`release`](Watching::release).
    ///
    /// # Errors
    /// Why there is none.
    pub(super) fn shared() -> Result<Arc<Watching>, String> {
        let mut current = current();
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
        let mappings =
            Mappings::open().map_err(|e| format!("/proc/self/maps, where the mappings are listed: {e}"))?;
        let stop = EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)
            .map_err(|e| format!("eventfd: {e}"))?;
        let shared = Arc::new(Shared {
            pulse: Arc::new(Pulse {
                sequence: AtomicU64::new(0),
                sound: AtomicBool::new(true),
                letting_go: AtomicU32::new(0),
                userfault,
            }),
            mappings,
            stop,
            armed: Mutex::new(Armed::new()),
            watchers: Mutex::new(Vec::with_capacity(MOST_WATCHERS)),
            applying: Mutex::new(()),
            mark: Mutex::new(None),
            late: AtomicU64::new(0),
            pause: AtomicU64::new(0),
        });
        let of_thread = shared.clone();
        let thread = std::thread::Builder::new().name("hostbuf-monitor".into()).spawn(move || {
            let _ = SigSet::all().thread_block();
            // Whoever stops it waits for it and has the last reference: nothing is freed here.
            of_thread.listen();
        });
        let thread = thread.map_err(|e| format!("starting the monitor's thread: {e}"))?;
        let watching = Watching { shared, thread: Some(thread), lineage: Lineage::here() };
        proof::prove(&watching)?;
        Ok(watching)
    }

    pub(super) fn pulse(&self) -> &Arc<Pulse> {
        &self.shared.pulse
    }

    pub(super) fn sequence(&self) -> u64 {
        self.shared.pulse.sequence()
    }

    pub(super) fn unchanged_since(&self, before: u64) -> bool {
        self.shared.pulse.unchanged_since(before)
    }

    /// Waits until every change that was under way has been applied. `false`: that was not to be seen for a while, since others
    /// go on changing memory, or one change takes long.
    ///
    /// Some kernels leave their mark for ever when an mremap fails. When nothing but the mark has been seen for long, it is
    /// doubted, and then nobody waits for it until it is gone.
    pub(super) fn settle(&self) -> bool {
        let shared = &self.shared;
        let mut since: Option<(Instant, u64)> = None;
        let mut looks = 0u32;
        loop {
            let before = self.sequence();
            if self.unchanged_since(before) {
                return true;
            }
            // While it is odd the monitor is at work, and will be done.
            if before.is_multiple_of(2) && !shared.pulse.sound.load(Ordering::Relaxed) {
                if !shared.pulse.userfault.is_quiet() {
                    return false;
                }
                // A mark that is gone was none that stays.
                shared.trust();
            }
            let (begun, first) = *since.get_or_insert_with(|| (Instant::now(), before));
            let waited = begun.elapsed();
            // As long as the monitor has not come to the very first change, its thread has no core.
            let starved =
                || first == before && (before % 2 == 1 || shared.is_letting_go() || shared.has_news());
            // Time that this thread spent without a core was no look.
            let looked = looks >= LOOKS && waited > PATIENCE;
            if looked && (waited > PATIENCE_WITH_THREAD || !starved()) {
                shared.look_for_a_mark_that_stays(before);
                return false;
            }
            looks += 1;
            if looks < LOOKS {
                std::hint::spin_loop();
            } else {
                // The monitor wants a core too.
                std::thread::yield_now();
            }
        }
    }

    /// Whether all of `span` lies in one mapping.
    pub(super) fn is_one_mapping(&self, span: Span) -> bool {
        self.shared.mappings.is_one(span)
    }

    pub(super) fn arm(&self, span: Span) -> Result<Option<Span>, Unwatched> {
        let shared = &self.shared;
        let begun = Instant::now();
        let mut unclear = 0;
        // Whoever unmaps goes on when the news is read, not when it is applied: what stands there by now may be another mapping
        // than the one that is still noted as watched.
        while begun.elapsed()
            < 2 * PATIENCE_WITH_THREAD + Duration::from_micros(shared.pause.load(Ordering::Relaxed))
            && self.settle()
        {
            let (found, pages, request) = {
                let mut armed = held(&shared.armed);
                let found = armed.around(span);
                (found, armed.pages(span), if found.is_none() { armed.begin(span) } else { None })
            };
            if let Some((whole, discarded)) = found {
                match pages {
                    Pages::Settled => {}
                    Pages::Going => return Err(Unwatched::Restless),
                    Pages::Due => {
                        let begun = Instant::now();
                        kernel::wait_for_the_address_space();
                        held(&shared.armed).barrier(begun);
                        continue;
                    }
                }
                let pause = shared.pause.load(Ordering::Relaxed);
                if pause > 0 {
                    std::thread::sleep(Duration::from_micros(pause));
                }
                return Ok((!discarded).then_some(whole));
            }
            let Some(request) = request else {
                std::thread::yield_now();
                continue;
            };
            let registered = self.register(span, request);
            let settled = registered.is_ok() && self.settle();
            let mut armed = held(&shared.armed);
            let unchanged = armed.end(request) && settled;
            let added = unchanged && registered.as_ref().is_ok_and(|&whole| armed.add(whole));
            drop(armed);
            match registered {
                Ok(_) if added => {}
                Ok(whole) => {
                    shared.let_go(whole);
                    if unchanged {
                        return Err(Unwatched::Full);
                    }
                }
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
        Err(if shared.pulse.sound.load(Ordering::Relaxed) {
            Unwatched::Restless
        } else {
            Unwatched::Unproven
        })
    }

    /// Tells the kernel. A change before it knew is not told: then the second look finds another mapping, or the second telling
    /// closes the hole that it has left. A change afterwards disturbs the request.
    fn register(&self, span: Span, request: usize) -> Result<Span, Refusal> {
        let tell = |whole| {
            self.shared.pulse.userfault.register(whole).map_err(|e| match e.raw_os_error() {
                Some(libc::ENOMEM) => Refusal::Certain(Unwatched::Full),
                // Another one has it: somebody else's userfaultfd.
                Some(libc::EBUSY) => Refusal::Certain(Unwatched::Memory),
                _ => Refusal::Unclear,
            })
        };
        let whole = self.shared.mappings.watchable(span)?;
        held(&self.shared.armed).extend(request, whole);
        tell(whole)?;
        // With the watching the kernel may have made one mapping of it and of a watched one beside it.
        let looked_again =
            self.shared.mappings.watchable(span).and_then(|again| match again.contains(whole) {
                true => tell(whole),
                false => Err(Refusal::Unclear),
            });
        // Somebody has mapped there meanwhile: what is watched now may be a part of his mapping, which the kernel keeps apart
        // from the rest of it, so that he could not move it.
        looked_again.inspect_err(|_| self.shared.let_go(whole)).map(|()| whole)
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
        self.shared.late.store(time.as_micros() as u64, Ordering::Relaxed);
    }

    /// For tests: lets requests go on so much later.
    pub(super) fn pause(&self, time: Duration) {
        self.shared.pause.store(time.as_micros() as u64, Ordering::Relaxed);
    }
}

impl Shared {
    fn listen(&self) {
        let mut messages = Messages::new();
        loop {
            // Asleep: one that looks again and again is no sooner there where cores halt when they are idle, and each munmap
            // would have to interrupt its core.
            let mut fds = [
                PollFd::new(self.pulse.userfault.as_fd(), PollFlags::POLLIN),
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
            self.apply(|| {
                let mut more = true;
                while more {
                    more = self.pulse.userfault.read(&mut messages);
                    for (span, change) in messages.iter() {
                        match change {
                            Change::Gone => held(&self.armed).unmapped(span),
                            Change::Discarded => held(&self.armed).discard(span),
                            Change::Arrived => {
                                held(&self.armed).arrived(span);
                                continue;
                            }
                        }
                        self.tell(span);
                    }
                }
            });
        }
    }

    /// Does something after which what is live may be another one: whoever hits meanwhile waits until it is done. It must not
    /// allocate, nor free.
    fn apply(&self, change: impl FnOnce()) {
        let _alone = held(&self.applying);
        self.pulse.sequence.fetch_add(1, Ordering::AcqRel);
        change();
        self.pulse.sequence.fetch_add(1, Ordering::AcqRel);
    }

    /// Watches a range no longer, nor what others have come to watch of it: for them it has changed.
    ///
    /// From before the kernel stops telling until that is known, nobody relies on the monitor; which may go on with its work
    /// meanwhile.
    fn let_go(&self, span: Span) {
        self.pulse.letting_go.fetch_add(1, Ordering::SeqCst);
        self.unregister(span);
        self.apply(|| {
            held(&self.armed).remove(span);
            self.tell(span);
        });
        self.pulse.letting_go.fetch_sub(1, Ordering::Release);
    }

    fn is_letting_go(&self) -> bool {
        self.pulse.letting_go.load(Ordering::Acquire) > 0
    }

    /// Tells the kernel. Where a part is not mapped any more the rest is still to be let go.
    fn unregister(&self, span: Span) {
        if self.pulse.userfault.unregister(span).is_ok() {
            return;
        }
        self.mappings.each(|mapping, _| {
            let (start, end) = (mapping.start().max(span.start()), mapping.end().min(span.end()));
            if let Some(part) = end.checked_sub(start).and_then(|length| Span::new(start, length).ok()) {
                let _ = self.pulse.userfault.unregister(part);
            }
            mapping.start() < span.end()
        });
    }

    /// Lets go of every mapping that may be watched, each as a whole: also where it has moved to, and what it has grown by.
    /// Nothing is allocated, since whoever frees may wait for the monitor.
    fn let_all_go(&self) {
        self.mappings.each(|one, mapping| {
            if is_own(&mapping) && held(&self.armed).may_be_watched(one) {
                let _ = self.pulse.userfault.unregister(one);
            }
            true
        });
    }

    fn has_news(&self) -> bool {
        let mut fds = [PollFd::new(self.pulse.userfault.as_fd(), PollFlags::POLLIN)];
        poll(&mut fds, PollTimeout::ZERO).unwrap_or(0) > 0
    }

    /// Whether a change has been under way since long ago of which there is no news.
    fn look_for_a_mark_that_stays(&self, sequence: u64) {
        let stays = {
            let mut mark = held(&self.mark);
            if sequence % 2 == 1 || self.pulse.userfault.is_quiet() || self.has_news() {
                *mark = None;
            } else if mark.is_none_or(|(_, then)| then != sequence) {
                *mark = Some((Instant::now(), sequence));
            }
            mark.is_some_and(|(since, _)| since.elapsed() > STUCK)
        };
        if stays {
            self.doubt();
        }
    }

    #[cold]
    fn doubt(&self) {
        if self.pulse.sound.swap(false, Ordering::Relaxed) {
            tracing::error!(
                "for {STUCK:?} the kernel has said that this program's memory is changing, and not what: until it is over \
                 nothing of it is kept registered beyond its leases"
            );
            self.tell(Span::new(1, usize::MAX - 1).expect("a range"));
        }
    }

    #[cold]
    fn trust(&self) {
        if !self.pulse.sound.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                "the change of this program's memory that took so long is over: registrations are kept again"
            );
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
        for _ in 0..LAST_LOOKS {
            let before = self.sequence();
            self.shared.let_all_go();
            // Else something may have moved to where this look had been already.
            if self.unchanged_since(before) {
                break;
            }
            std::thread::yield_now();
        }
        let _ = self.shared.stop.write(1);
        let _ = thread.join();
    }
}
