//! What a process knows of its channels, beside what lies in their boxes: what has been told, and what is under way.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use std::time::Duration;

use crate::error::{Error, Failure, Result};
use crate::rdma::connect::pending::Pending;
use crate::rdma::messages::ring::{Boxes, Over};

/// What the two sides tell each other: this, and twice the number of the other's channel.
pub(crate) const MESSAGE: u32 = 0;
pub(crate) const TAKEN: u32 = 1;

/// One channel, seen from here.
pub(crate) struct End {
    /// The other rank, and what the channel is called.
    pub(crate) rank: usize,
    pub(crate) tag: u32,
    /// Which of the other rank's channels this is; where its boxes begin, and the key to them.
    pub(crate) there: usize,
    pub(crate) boxes: (u64, u32),
    pub(crate) sending: Mutex<Sender>,
    pub(crate) receiving: Mutex<Receiver>,
    /// How many messages have come.
    came: AtomicU64,
    /// How the first write failed that did: what it told is lost, and nothing that is told later makes up for it.
    failed: OnceLock<Failure>,
    lock: Mutex<()>,
    told: Condvar,
}

#[derive(Default)]
pub(crate) struct Sender {
    pub(crate) sent: u64,
    pub(crate) writes: Writes,
}

#[derive(Default)]
pub(crate) struct Receiver {
    pub(crate) taken: u64,
    pub(crate) told: u64,
    pub(crate) writes: Writes,
}

/// Writes into the other side's boxes whose end has not been seen.
#[derive(Default)]
pub(crate) struct Writes(pub(crate) VecDeque<Pending>);

pub(crate) fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What nobody else has at the moment.
fn free<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

impl End {
    pub(crate) fn new(rank: usize, tag: u32, there: usize, boxes: (u64, u32)) -> End {
        End {
            rank,
            tag,
            there,
            boxes,
            sending: Mutex::default(),
            receiving: Mutex::default(),
            came: AtomicU64::new(0),
            failed: OnceLock::new(),
            lock: Mutex::new(()),
            told: Condvar::new(),
        }
    }

    /// How many messages have come.
    pub(crate) fn came(&self) -> u64 {
        self.came.load(Ordering::Acquire)
    }

    /// The other side has told something.
    pub(crate) fn hear(&self, what: u32) {
        if what == MESSAGE {
            self.came.fetch_add(1, Ordering::Release);
        }
        self.wake();
    }

    fn wake(&self) {
        drop(held(&self.lock));
        self.told.notify_all();
    }

    /// Sleeps until something may have changed, unless `ready` already, and at most so long.
    pub(crate) fn sleep_unless(&self, ready: &dyn Fn() -> bool, at_most: Duration) {
        let lock = held(&self.lock);
        if !ready() && self.failed.get().is_none() {
            drop(self.told.wait_timeout(lock, at_most).unwrap_or_else(PoisonError::into_inner));
        }
    }

    /// # Errors
    /// [`Error::Peer`] when something of this side's is lost.
    pub(crate) fn check(&self, doing: &'static str) -> Result<()> {
        match self.failed.get() {
            None => Ok(()),
            Some(&failure) => Err(Error::Peer { host: self.rank, doing: doing.into(), failure }),
        }
    }

    /// Something is lost: from now on this side says so, and the other one reads it when it asks.
    pub(crate) fn break_off(&self, boxes: &Boxes, index: usize, failure: Failure) {
        if self.failed.set(failure).is_ok() {
            boxes.say_over(index, Over::Lost);
            self.wake();
        }
    }

    /// Forgets the writes that are over, in whichever direction nobody else does.
    pub(crate) fn look_after(&self, boxes: &Boxes, index: usize) {
        let mut result = Ok(());
        if let Some(mut sender) = free(&self.sending) {
            result = self.reap(&mut sender.writes, boxes, index, false);
        }
        if let Some(mut receiver) = free(&self.receiving) {
            result = result.and(self.reap(&mut receiver.writes, boxes, index, false));
        }
        if let Err(error) = result {
            tracing::warn!(rank = self.rank, %error, "it is not known what has arrived");
        }
    }

    /// Forgets the writes that are over; all of them, with `wait`. Of those that failed this side says so from now on.
    ///
    /// # Errors
    /// [`Error::Os`].
    pub(crate) fn reap(&self, writes: &mut Writes, boxes: &Boxes, index: usize, wait: bool) -> Result<()> {
        while let Some(first) = writes.0.front_mut() {
            let over = if wait { first.wait_timeout(Duration::MAX) } else { first.test() };
            match over {
                Ok(false) => break,
                Ok(true) => {}
                Err(Error::Peer { failure, .. }) => self.break_off(boxes, index, failure),
                Err(other) => return Err(other),
            }
            writes.0.pop_front();
        }
        Ok(())
    }
}

/// The other side of one of these has told something.
pub(crate) fn hear(ends: &[End], number: u32) {
    if let Some(end) = ends.get(number as usize / 2) {
        end.hear(number % 2);
    }
}
