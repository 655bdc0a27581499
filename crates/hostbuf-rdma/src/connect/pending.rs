//! Operations that are under way.

#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::error::{Error, Failure, Result};
use crate::rdma::connect::endpoint::Endpoint;
use crate::rdma::one_sided::fabric::Shared;
use crate::rdma::verbs::in_flight::{Landing, deadline};
use crate::rdma::verbs::queue_pair::{Pair, Request, What};

/// An operation that was begun. It goes on when this is dropped; only nobody hears of its end.
#[must_use = "an operation is over when wait() or test() says so"]
pub struct Pending {
    endpoint: Arc<Endpoint>,
    host: usize,
    doing: &'static str,
    /// The connection, and the groups of requests that are under way, the last one last.
    pair: Option<Arc<Pair>>,
    under_way: VecDeque<Arc<Landing>>,
    failed: Option<Failure>,
    /// Whose memory it is about.
    keeps: Option<Arc<Shared>>,
}

impl Pending {
    /// Nothing yet, to be carried out by the connection to `host`.
    ///
    /// # Errors
    /// [`Error::Peer`] when it cannot be reached; [`Error::Os`].
    pub(crate) fn to(endpoint: &Arc<Endpoint>, host: usize, doing: &'static str) -> Result<Pending> {
        Pending::to_until(endpoint, host, doing, None)
    }

    /// The same; a connection that has to be made first is given up at that time.
    ///
    /// # Errors
    /// As [`to`](Pending::to); [`Failure::Timeout`] also when the time is over.
    pub(crate) fn to_until(
        endpoint: &Arc<Endpoint>,
        host: usize,
        doing: &'static str,
        until: Option<Instant>,
    ) -> Result<Pending> {
        endpoint.check_here()?;
        let pair = Some(endpoint.links.to(host, until)?);
        Ok(Pending {
            endpoint: endpoint.clone(),
            host,
            doing,
            pair,
            under_way: VecDeque::new(),
            failed: None,
            keeps: None,
        })
    }

    /// Whether both go by one connection, so that one follows the other.
    pub(crate) fn is_by_the_same_connection(&self, other: &Pending) -> bool {
        matches!((&self.pair, &other.pair), (Some(one), Some(two)) if Arc::ptr_eq(one, two))
    }

    /// The memory stays registered until this is dropped, also when the fabric is dropped before.
    pub(crate) fn keeping(mut self, shared: Arc<Shared>) -> Pending {
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
    pub(crate) unsafe fn post(&mut self, what: What, local: (usize, u32, u32)) -> Result<()> {
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
    pub(crate) unsafe fn post_all(&mut self, steps: &[(What, (usize, u32, u32))]) -> Result<()> {
        let endpoint = self.endpoint.clone();
        for steps in steps.chunks(endpoint.flights.most()) {
            let Some(pair) = self.pair.clone() else { return Err(self.failure(Failure::Flushed)) };
            let patience = endpoint.options.connect;
            let Some(group) = endpoint.flights.begin(self.host, steps.len(), &pair, patience)? else {
                return Err(self.failure(Failure::Timeout));
            };
            let last = group.slots().last().copied();
            let request = |(&slot, &(what, local)): (&u32, &(What, _))| Request {
                id: u64::from(slot),
                what,
                local,
                told: Some(slot) == last,
            };
            let requests = group.slots().iter().zip(steps).map(request);
            // SAFETY: as this function's caller promises.
            if let Err((posted, error)) = unsafe { pair.post(requests) } {
                match (posted, last) {
                    // The device has some of them, and will not say when they are over, unless the last one ends with them.
                    (1.., Some(last)) => {
                        pair.end_with(u64::from(last));
                        endpoint.links.broken(self.host, &pair);
                    }
                    _ => endpoint.flights.cancel(&group),
                }
                return Err(error);
            }
            self.under_way.push_back(group.landing);
            self.settle();
        }
        Ok(())
    }

    /// Begins a step without bytes of this side.
    ///
    /// # Errors
    /// As [`post`](Pending::post).
    pub(crate) fn post_nothing(&mut self, what: What) -> Result<()> {
        // SAFETY: no memory is named.
        unsafe { self.post(what, (0, 0, 0)) }
    }

    fn failure(&self, failure: Failure) -> Error {
        Error::Peer { host: self.host, doing: self.doing.into(), failure }
    }

    /// Takes what has landed; whether all has.
    fn settle(&mut self) -> bool {
        while let Some(first) = self.under_way.front() {
            let Some(status) = first.status() else { return false };
            self.under_way.pop_front();
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
    /// [`Error::Peer`]: it has failed. [`Error::Forked`] in a child of the process that began it.
    pub fn test(&mut self) -> Result<bool> {
        self.endpoint.check_here()?;
        if !self.settle() {
            let endpoint = self.endpoint.clone();
            endpoint.flights.glance()?;
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
        self.endpoint.check_here()?;
        let endpoint = self.endpoint.clone();
        endpoint.flights.wait(None, || self.settle())?;
        self.outcome()
    }

    /// The same; `false`: the time is over, and it goes on.
    ///
    /// # Errors
    /// As [`wait`](Pending::wait).
    pub fn wait_timeout(&mut self, timeout: Duration) -> Result<bool> {
        self.endpoint.check_here()?;
        let endpoint = self.endpoint.clone();
        if !endpoint.flights.wait(deadline(timeout), || self.settle())? {
            return Ok(false);
        }
        self.outcome().map(|()| true)
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
