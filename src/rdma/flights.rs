//! Requests that are under way, and those who wait for them to land.
//!
//! Nobody's thread is there only to look for completions: whoever waits looks, one at a time, and the others sleep until he
//! has seen something. Between two looks he sleeps too, until the device has an event; or, with `busy`, he does not.
//!
//! Of requests that are posted together only the last one reports that it is over, which says that all are: they are a
//! *group*, known by its last one. One that fails reports that too, and so do all behind it.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::error::Result;
use crate::rdma::completions::Completions;

/// How long one sleep is at most. Events do not get lost; this is for a device that has gone.
const NAP: Duration = Duration::from_millis(200);

const FREE: u32 = 0;
const UP: u32 = 1;
/// Nobody waits for it any more.
const ABANDONED: u32 = 2;
/// Landed, with this more than the status.
const LANDED: u32 = 3;

/// The most requests that are posted together.
pub(super) const GROUP: usize = 32;

/// The numbers of a group's requests.
pub(super) struct Group {
    count: usize,
    slots: [u32; GROUP],
}

impl Group {
    /// In the order in which they are posted; none when there was no room in time.
    pub(super) fn slots(&self) -> &[u32] {
        &self.slots[..self.count]
    }
}

struct Slot {
    state: AtomicU32,
    host: AtomicU32,
    /// The one before it in its group, and the last one of the group; each the number and one, 0 for none.
    before: AtomicU32,
    last: AtomicU32,
    /// Of the last one of a group: the status of the first that failed, 0 for none.
    failed: AtomicU32,
}

/// See the [module](self).
pub(super) struct Flights {
    completions: Arc<Completions>,
    busy: bool,
    /// The most requests to one host at a time.
    depth: u32,
    slots: Box<[Slot]>,
    free: Mutex<Vec<u32>>,
    /// How many requests to each host are under way.
    to: Box<[AtomicU32]>,
    /// Whether somebody looks.
    looked_after: Mutex<bool>,
    seen: Condvar,
}

fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Flights {
    /// At most `slots` requests at a time, and `depth` to each of `hosts` hosts.
    pub(super) fn new(
        completions: Arc<Completions>,
        slots: u32,
        hosts: usize,
        depth: u32,
        busy: bool,
    ) -> Flights {
        let zero = || AtomicU32::new(0);
        let slot = || Slot {
            state: AtomicU32::new(FREE),
            host: zero(),
            before: zero(),
            last: zero(),
            failed: zero(),
        };
        Flights {
            completions,
            busy,
            depth,
            slots: (0..slots).map(|_| slot()).collect(),
            free: Mutex::new((0..slots).rev().collect()),
            to: (0..hosts).map(|_| AtomicU32::new(0)).collect(),
            looked_after: Mutex::new(false),
            seen: Condvar::new(),
        }
    }

    /// The most requests of one group.
    pub(super) fn most(&self) -> usize {
        GROUP.min(self.depth as usize)
    }

    /// A group of `count` requests to `host`, at most [`most`](Flights::most): their numbers, to which those who wait for it need
    /// only keep the last. Waits until there is room, or until the time is over: then it is empty.
    ///
    /// # Errors
    /// [`Error::Os`](crate::Error::Os).
    pub(super) fn begin(&self, host: usize, count: usize, until: Instant) -> Result<Group> {
        debug_assert!((1..=self.most()).contains(&count));
        let mut group = Group { count: 0, slots: [0; GROUP] };
        self.wait(Some(until), || {
            if self.to[host].fetch_add(count as u32, Ordering::AcqRel) + count as u32 > self.depth {
                self.to[host].fetch_sub(count as u32, Ordering::AcqRel);
                return false;
            }
            let mut free = held(&self.free);
            let Some(left) = free.len().checked_sub(count) else {
                self.to[host].fetch_sub(count as u32, Ordering::AcqRel);
                return false;
            };
            group.slots[..count].copy_from_slice(&free[left..]);
            group.count = count;
            free.truncate(left);
            true
        })?;
        let mut before = 0;
        for &slot in group.slots() {
            let here = &self.slots[slot as usize];
            let last = group.slots[count - 1];
            here.host.store(host as u32, Ordering::Relaxed);
            here.before.store(before, Ordering::Relaxed);
            here.last.store(if slot == last { 0 } else { last + 1 }, Ordering::Relaxed);
            here.failed.store(0, Ordering::Relaxed);
            here.state.store(UP, Ordering::Release);
            before = slot + 1;
        }
        Ok(group)
    }

    /// The last of a group: the group was not posted after all, or its result has been fetched.
    pub(super) fn end(&self, last: u32) {
        let here = &self.slots[last as usize];
        if here.state.swap(FREE, Ordering::AcqRel) == UP {
            self.to[here.host.load(Ordering::Relaxed) as usize].fetch_sub(1, Ordering::AcqRel);
            self.end_before(last);
        }
        held(&self.free).push(last);
    }

    /// Ends what stands before the last one of a group.
    fn end_before(&self, last: u32) {
        let mut before = self.slots[last as usize].before.load(Ordering::Relaxed);
        while let Some(slot) = before.checked_sub(1) {
            let here = &self.slots[slot as usize];
            before = here.before.load(Ordering::Relaxed);
            here.state.store(FREE, Ordering::Release);
            self.to[here.host.load(Ordering::Relaxed) as usize].fetch_sub(1, Ordering::AcqRel);
            held(&self.free).push(slot);
        }
    }

    /// Nobody waits for it: it ends when it lands.
    pub(super) fn abandon(&self, slot: u32) {
        let here = &self.slots[slot as usize];
        if here.state.compare_exchange(UP, ABANDONED, Ordering::AcqRel, Ordering::Acquire).is_err() {
            self.end(slot);
        }
    }

    /// The status, if it has landed.
    pub(super) fn landed(&self, slot: u32) -> Option<u32> {
        self.slots[slot as usize].state.load(Ordering::Acquire).checked_sub(LANDED)
    }

    /// How many requests to `host` are under way.
    pub(super) fn under_way(&self, host: usize) -> u32 {
        self.to[host].load(Ordering::Acquire)
    }

    /// Looks once for what has landed.
    ///
    /// # Errors
    /// [`Error::Os`](crate::Error::Os).
    pub(super) fn look(&self) -> Result<usize> {
        let mut ended = Vec::new();
        let seen = self.completions.take(|completion| {
            let slot = completion.wr_id() as u32;
            let Some(here) = self.slots.get(slot as usize) else { return };
            let mut status = completion.error().map_or(0, |(status, _)| status);
            if let Some(last) = here.last.load(Ordering::Relaxed).checked_sub(1) {
                // It reports that it has failed; the group is over when its last one reports.
                let first = &self.slots[last as usize].failed;
                let _ = first.compare_exchange(0, status, Ordering::Relaxed, Ordering::Relaxed);
                return;
            }
            self.end_before(slot);
            match here.failed.load(Ordering::Relaxed) {
                0 => {}
                first => status = first,
            }
            self.to[here.host.load(Ordering::Relaxed) as usize].fetch_sub(1, Ordering::AcqRel);
            if here.state.compare_exchange(UP, LANDED + status, Ordering::AcqRel, Ordering::Acquire).is_err()
            {
                ended.push(slot);
            }
        })?;
        for slot in ended {
            self.slots[slot as usize].state.store(FREE, Ordering::Release);
            held(&self.free).push(slot);
        }
        Ok(seen)
    }

    /// Waits until `done`, which is asked whenever something has landed. `false`: the time is over.
    ///
    /// # Errors
    /// [`Error::Os`](crate::Error::Os).
    pub(super) fn wait(&self, until: Option<Instant>, mut done: impl FnMut() -> bool) -> Result<bool> {
        loop {
            if done() {
                return Ok(true);
            }
            let left = match until.map(|until| until.saturating_duration_since(Instant::now())) {
                Some(left) if left.is_zero() => return Ok(false),
                Some(left) => left.min(NAP),
                None => NAP,
            };
            let mut somebody = held(&self.looked_after);
            if *somebody {
                drop(self.seen.wait_timeout(somebody, left).unwrap_or_else(PoisonError::into_inner));
                continue;
            }
            *somebody = true;
            drop(somebody);
            let looking = Looking(self);
            self.look_or_sleep(left)?;
            drop(looking);
        }
    }

    fn look_or_sleep(&self, nap: Duration) -> Result<()> {
        if self.look()? > 0 {
            return Ok(());
        }
        if self.busy {
            std::hint::spin_loop();
            return Ok(());
        }
        self.completions.arm()?;
        // What came before it was armed makes no event.
        if self.look()? > 0 {
            return Ok(());
        }
        let mut fds = [PollFd::new(self.completions.as_fd(), PollFlags::POLLIN)];
        let nap = PollTimeout::try_from(nap.as_millis().max(1) as i32).unwrap_or(PollTimeout::ZERO);
        // Interrupted or not, whoever waits looks again.
        let _ = poll(&mut fds, nap);
        self.look().map(drop)
    }
}

/// The one who looks. When he goes, another one does.
struct Looking<'a>(&'a Flights);

impl Drop for Looking<'_> {
    fn drop(&mut self) {
        *held(&self.0.looked_after) = false;
        self.0.seen.notify_all();
    }
}
