//! Operations that are under way.

#![allow(unsafe_code)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::error::{Error, Failure, Result};
use crate::rdma::endpoint::Endpoint;
use crate::rdma::fabric::Shared;
use crate::rdma::pair::{Pair, Request, What};

/// An operation that was begun. It goes on when this is dropped; only nobody hears of its end.
#[must_use = "an operation is over when wait() or test() says so"]
pub struct Pending {
    endpoint: Arc<Endpoint>,
    host: usize,
    doing: &'static str,
    /// The connection, and the groups of requests that are under way, the last one last.
    pair: Option<Arc<Pair>>,
    slots: Vec<u32>,
    failed: Option<Failure>,
    /// Whose memory it is about.
    keeps: Option<Arc<Shared>>,
}

impl Pending {
    /// Nothing yet, to be carried out by the connection to `host`.
    ///
    /// # Errors
    /// [`Error::Peer`] when it cannot be reached; [`Error::Os`].
    pub(super) fn to(endpoint: &Arc<Endpoint>, host: usize, doing: &'static str) -> Result<Pending> {
        let pair = Some(endpoint.links.to(host)?);
        Ok(Pending {
            endpoint: endpoint.clone(),
            host,
            doing,
            pair,
            slots: Vec::new(),
            failed: None,
            keeps: None,
        })
    }

    /// The memory stays registered until this is dropped, also when the fabric is dropped before.
    pub(super) fn keeping(mut self, shared: Arc<Shared>) -> Pending {
        self.keeps = Some(shared);
        self
    }

    /// Begins one step of it; waits for room in the queue.
    ///
    /// # Errors
    /// [`Error::Peer`] when there is none in time; [`Error::Os`].
    ///
    /// # Safety
    /// The local memory (address, bytes, key) stays mapped until the step is over, and untouched if the device writes there.
    pub(super) unsafe fn post(&mut self, what: What, local: (usize, u32, u32)) -> Result<()> {
        // SAFETY: as this function's caller promises.
        unsafe { self.post_all(&[(what, local)]) }
    }

    /// Begins many steps, which are posted together as far as they may.
    ///
    /// # Errors
    /// As [`post`](Pending::post).
    ///
    /// # Safety
    /// As [`post`](Pending::post).
    pub(super) unsafe fn post_all(&mut self, steps: &[(What, (usize, u32, u32))]) -> Result<()> {
        for steps in steps.chunks(self.endpoint.flights.most()) {
            self.make_room()?;
            let until = Instant::now() + self.endpoint.options.connect;
            let Some(pair) = self.pair.clone() else { return Err(self.failure(Failure::Flushed)) };
            let group = self.endpoint.flights.begin(self.host, steps.len(), until)?;
            let Some((&last, _)) = group.slots().split_last() else {
                return Err(self.failure(Failure::Timeout));
            };
            let request = |(&slot, &(what, local)): (&u32, &(What, _))| Request {
                id: u64::from(slot),
                what,
                local,
                told: slot == last,
            };
            let requests = group.slots().iter().zip(steps).map(request);
            // SAFETY: as this function's caller promises.
            if let Err((posted, error)) = unsafe { pair.post(requests) } {
                match posted {
                    0 => self.endpoint.flights.end(last),
                    // The device has some of them, and will not say when they are over, unless the last one ends with them.
                    _ => {
                        pair.end_with(u64::from(last));
                        self.endpoint.flights.abandon(last);
                    }
                }
                return Err(error);
            }
            self.slots.push(last);
        }
        Ok(())
    }

    /// Keeps few groups of its own, however many it has begun.
    fn make_room(&mut self) -> Result<()> {
        const MOST: usize = 64;
        if self.slots.len() >= MOST {
            let endpoint = self.endpoint.clone();
            endpoint.flights.wait(None, || {
                self.settle();
                self.slots.len() < MOST
            })?;
        }
        Ok(())
    }

    /// Begins a step without bytes of this side.
    ///
    /// # Errors
    /// As [`post`](Pending::post).
    pub(super) fn post_nothing(&mut self, what: What) -> Result<()> {
        // SAFETY: no memory is named.
        unsafe { self.post(what, (0, 0, 0)) }
    }

    fn failure(&self, failure: Failure) -> Error {
        Error::Peer { host: self.host, doing: self.doing.into(), failure }
    }

    /// Takes what has landed; whether all has.
    fn settle(&mut self) -> bool {
        while let Some(&slot) = self.slots.first() {
            let Some(status) = self.endpoint.flights.landed(slot) else { return false };
            self.endpoint.flights.end(slot);
            self.slots.remove(0);
            if status != 0 {
                // The first failure is the cause of the others.
                self.failed.get_or_insert(Failure::of_status(status));
            }
        }
        true
    }

    fn outcome(&mut self) -> Result<()> {
        match self.failed {
            None => Ok(()),
            Some(failure) => {
                // A connection that has failed once does nothing any more.
                if let Some(pair) = self.pair.take() {
                    self.endpoint.links.broken(self.host, &pair);
                }
                Err(self.failure(failure))
            }
        }
    }

    /// Whether it is over, without waiting.
    ///
    /// # Errors
    /// [`Error::Peer`]: it has failed.
    pub fn test(&mut self) -> Result<bool> {
        if !self.settle() {
            let endpoint = self.endpoint.clone();
            endpoint.flights.look()?;
            if !self.settle() {
                return Ok(false);
            }
        }
        self.outcome().map(|()| true)
    }

    /// Waits until it is over.
    ///
    /// # Errors
    /// [`Error::Peer`]: it has failed, by the device's own timeout at the latest.
    pub fn wait(mut self) -> Result<()> {
        let endpoint = self.endpoint.clone();
        endpoint.flights.wait(None, || self.settle())?;
        self.outcome()
    }

    /// The same; `false`: the time is over, and it goes on.
    ///
    /// # Errors
    /// As [`wait`](Pending::wait).
    pub fn wait_timeout(&mut self, timeout: Duration) -> Result<bool> {
        let endpoint = self.endpoint.clone();
        if !endpoint.flights.wait(Some(Instant::now() + timeout), || self.settle())? {
            return Ok(false);
        }
        self.outcome().map(|()| true)
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        for &slot in &self.slots {
            self.endpoint.flights.abandon(slot);
        }
    }
}

impl std::fmt::Debug for Pending {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pending")
            .field("doing", &self.doing)
            .field("host", &self.host)
            .finish_non_exhaustive()
    }
}
