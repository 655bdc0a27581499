//! Requests that are under way, and those who wait for them to land.
//!
//! Nobody's thread is there only to look for completions: whoever waits looks, one at a time, and the others sleep until he
//! has seen something. Between two looks he sleeps too, until the device has an event; or, with `busy`, he does not.
//!
//! Of requests that are posted together only the last one reports that it is over, which says that all are: they are a
//! *group*, known by its last one. One that fails reports that too, and so do all behind it. What has become of a group stands
//! in a word of its own, so its places are free as soon as it has landed, whether anybody asks or not.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::error::Result;
use crate::rdma::verbs::completion_queue::Completions;
use crate::rdma::verbs::queue_pair::Pair;

/// How long one sleep is at most. Events do not get lost; this is for a device that has gone.
const NAP: Duration = Duration::from_millis(200);
/// The most requests that are posted together.
pub(crate) const GROUP: usize = 32;

/// What has become of a group.
pub(crate) struct Landing(AtomicU32);

impl Landing {
    /// The status of the first that failed, 0 for none; nothing while it is under way.
    pub(crate) fn status(&self) -> Option<u32> {
        self.0.load(Ordering::Acquire).checked_sub(1)
    }
}

/// The numbers of a group's requests, in the order in which they are posted, and where to see what becomes of them.
pub(crate) struct Group {
    count: usize,
    slots: [u32; GROUP],
    pub(crate) landing: Arc<Landing>,
}

impl Group {
    pub(crate) fn slots(&self) -> &[u32] {
        &self.slots[..self.count]
    }
}

/// A request that is under way, or none.
#[derive(Default)]
struct Slot {
    host: usize,
    /// Those before it in its group, of the last one; and the number of the last one, of those.
    before: Vec<u32>,
    last: Option<u32>,
    /// Of the last one of a group: the status of the first that failed.
    failed: Option<u32>,
    landing: Option<Arc<Landing>>,
    /// Lives until its requests have landed: a device forgets what a pair that has ended would have reported.
    pair: Option<Arc<Pair>>,
}

/// Everything about requests, changed by one thread at a time.
struct Book {
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// Of each host: how many requests to it are under way, and how many have landed.
    to: Vec<(u32, u64)>,
}

/// See the [module](self).
pub(crate) struct Flights {
    completions: Arc<Completions>,
    busy: bool,
    /// The most requests to one host at a time.
    depth: u32,
    book: Mutex<Book>,
    /// Whether somebody looks.
    looked_after: Mutex<bool>,
    seen: Condvar,
}

fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// So long from now; never where no clock goes that far.
pub(crate) fn deadline(timeout: Duration) -> Option<Instant> {
    Instant::now().checked_add(timeout)
}

impl Flights {
    /// At most `slots` requests at a time, and `depth` to each of `hosts` hosts.
    pub(crate) fn new(
        completions: Arc<Completions>,
        slots: u32,
        hosts: usize,
        depth: u32,
        busy: bool,
    ) -> Flights {
        let book = Book {
            slots: (0..slots).map(|_| Slot::default()).collect(),
            free: (0..slots).rev().collect(),
            to: vec![(0, 0); hosts],
        };
        let (looked_after, seen) = (Mutex::new(false), Condvar::new());
        Flights { completions, busy, depth, book: Mutex::new(book), looked_after, seen }
    }

    /// The most requests of one group.
    pub(crate) fn most(&self) -> usize {
        GROUP.min(self.depth as usize)
    }

    /// A group of `count` requests to `host`, at most [`most`](Flights::most), which are to be posted to `pair`. Waits until there is
    /// room, as long as something lands at least every so often; none when nothing does.
    ///
    /// # Errors
    /// [`Error::Os`](crate::Error::Os).
    pub(crate) fn begin(
        &self,
        host: usize,
        count: usize,
        pair: &Arc<Pair>,
        patience: Duration,
    ) -> Result<Option<Group>> {
        debug_assert!((1..=self.most()).contains(&count));
        let mut landed = self.landed(host);
        loop {
            let mut group = None;
            self.wait(deadline(patience), || {
                // It may be asked again.
                group = group.take().or_else(|| held(&self.book).begin(host, count, self.depth, pair));
                group.is_some()
            })?;
            if group.is_some() {
                return Ok(group);
            }
            let before = std::mem::replace(&mut landed, self.landed(host));
            if before == landed {
                return Ok(None);
            }
        }
    }

    /// None of a group was posted after all.
    pub(crate) fn cancel(&self, group: &Group) {
        let mut gone = Vec::new();
        if let Some(&last) = group.slots().last() {
            held(&self.book).free(last, 0, &mut gone);
        }
    }

    /// How many requests to `host` are under way.
    pub(crate) fn under_way(&self, host: usize) -> u32 {
        held(&self.book).to[host].0
    }

    fn landed(&self, host: usize) -> u64 {
        held(&self.book).to[host].1
    }

    /// Looks once for what has landed.
    ///
    /// # Errors
    /// [`Error::Os`](crate::Error::Os).
    pub(crate) fn look(&self) -> Result<usize> {
        // Ended without the lock: their ends are system calls.
        let mut gone = Vec::new();
        let seen = {
            // What was taken from the queue is in the book before anybody else takes: a place that is given again has no
            // completion of its last life to come.
            let mut book = held(&self.book);
            self.completions.take(|completion| {
                let status = completion.error().map_or(0, |(status, _)| status);
                book.land(completion.wr_id() as u32, status, &mut gone);
            })?
        };
        Ok(seen)
    }

    /// The same for who does not wait: those who do are told.
    ///
    /// # Errors
    /// As [`look`](Flights::look).
    pub(crate) fn glance(&self) -> Result<()> {
        if self.look()? > 0 {
            drop(held(&self.looked_after));
            self.seen.notify_all();
        }
        Ok(())
    }

    /// Waits until `done`, which is asked whenever something has landed. `false`: the time is over.
    ///
    /// # Errors
    /// [`Error::Os`](crate::Error::Os).
    pub(crate) fn wait(&self, until: Option<Instant>, mut done: impl FnMut() -> bool) -> Result<bool> {
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
            // Somebody else may have looked since, and told nobody.
            if done() {
                return Ok(true);
            }
            if *somebody {
                drop(self.seen.wait_timeout(somebody, left).unwrap_or_else(PoisonError::into_inner));
                continue;
            }
            *somebody = true;
            drop(somebody);
            let looking = Looking(self);
            self.look_or_sleep(left, &mut done)?;
            drop(looking);
        }
    }

    fn look_or_sleep(&self, nap: Duration, done: &mut impl FnMut() -> bool) -> Result<()> {
        if self.look()? > 0 {
            return Ok(());
        }
        if self.busy {
            std::hint::spin_loop();
            return Ok(());
        }
        self.completions.arm()?;
        // What came before it was armed makes no event, and what another one has taken from the queue makes none either.
        if self.look()? > 0 || done() {
            return Ok(());
        }
        let mut fds = [PollFd::new(self.completions.as_fd(), PollFlags::POLLIN)];
        let nap = PollTimeout::try_from(nap.as_millis().max(1) as i32).unwrap_or(PollTimeout::ZERO);
        // Interrupted or not, whoever waits looks again.
        let _ = poll(&mut fds, nap);
        self.look().map(drop)
    }
}

impl Book {
    fn begin(&mut self, host: usize, count: usize, depth: u32, pair: &Arc<Pair>) -> Option<Group> {
        if self.to[host].0 + count as u32 > depth {
            return None;
        }
        let left = self.free.len().checked_sub(count)?;
        let landing = Arc::new(Landing(AtomicU32::new(0)));
        let mut group = Group { count, slots: [0; GROUP], landing: landing.clone() };
        group.slots[..count].copy_from_slice(&self.free[left..]);
        self.free.truncate(left);
        self.to[host].0 += count as u32;
        let (&last, before) = group.slots().split_last()?;
        for &slot in before {
            self.slots[slot as usize].last = Some(last);
        }
        let here = &mut self.slots[last as usize];
        (here.host, here.last, here.failed) = (host, None, None);
        (here.landing, here.pair) = (Some(landing), Some(pair.clone()));
        here.before.extend_from_slice(before);
        Some(group)
    }

    /// A request has reported.
    fn land(&mut self, slot: u32, status: u32, gone: &mut Vec<Arc<Pair>>) {
        let Some(here) = self.slots.get(slot as usize) else { return };
        match here.last {
            // It has failed; the group is over when its last one reports.
            Some(last) => {
                let first = &mut self.slots[last as usize].failed;
                *first = first.or(Some(status));
            }
            None => {
                let status = here.failed.unwrap_or(status);
                self.free(slot, status, gone);
            }
        }
    }

    /// A group is over.
    fn free(&mut self, last: u32, status: u32, gone: &mut Vec<Arc<Pair>>) {
        let here = &mut self.slots[last as usize];
        let Some(landing) = here.landing.take() else { return };
        let (host, count) = (here.host, here.before.len() as u32 + 1);
        gone.extend(here.pair.take());
        let mut before = std::mem::take(&mut here.before);
        self.free.append(&mut before);
        self.free.push(last);
        // Its room is for the next group.
        self.slots[last as usize].before = before;
        self.to[host].0 -= count;
        self.to[host].1 += u64::from(count);
        landing.0.store(status + 1, Ordering::Release);
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
