//! Requests that are under way, and those who wait for them to land.
//!
//! Nobody's thread is there only to look for completions: whoever waits looks, one at a time, and the others sleep until he
//! has seen something. Between two looks he sleeps too, until the device has an event; or, with `busy`, he does not.

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

struct Slot {
    state: AtomicU32,
    host: AtomicU32,
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
        let slot = || Slot { state: AtomicU32::new(FREE), host: AtomicU32::new(0) };
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

    /// A place for one more request to `host`; waits until there is one, or until the time is over.
    ///
    /// # Errors
    /// [`Error::Os`](crate::Error::Os).
    pub(super) fn begin(&self, host: usize, until: Instant) -> Result<Option<u32>> {
        let mut slot = None;
        self.wait(Some(until), || {
            if self.to[host].fetch_add(1, Ordering::AcqRel) >= self.depth {
                self.to[host].fetch_sub(1, Ordering::AcqRel);
                return false;
            }
            slot = held(&self.free).pop();
            if slot.is_none() {
                self.to[host].fetch_sub(1, Ordering::AcqRel);
            }
            slot.is_some()
        })?;
        if let Some(slot) = slot {
            self.slots[slot as usize].host.store(host as u32, Ordering::Relaxed);
            self.slots[slot as usize].state.store(UP, Ordering::Release);
        }
        Ok(slot)
    }

    /// A request was not posted after all, or its result has been fetched.
    pub(super) fn end(&self, slot: u32) {
        let here = &self.slots[slot as usize];
        if here.state.swap(FREE, Ordering::AcqRel) == UP {
            self.to[here.host.load(Ordering::Relaxed) as usize].fetch_sub(1, Ordering::AcqRel);
        }
        held(&self.free).push(slot);
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
            let status = completion.error().map_or(0, |(status, _)| status);
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
