//! Operations in progress.

#![allow(unsafe_code, reason = "a device accesses memory while an operation is in progress")]

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::connect::endpoint::Endpoint;
use crate::peer::PeerId;
use crate::sync::deadline;
use crate::verbs::in_flight::BatchStatus;
use crate::verbs::queue_pair::QueuePair;
use crate::verbs::work_request::{LocalSegment, Operation, WorkRequest};
use hostbuf::error::{Error, Failure, Result};

/// An operation in progress. Dropping the handle does not cancel the operation; its result is lost.
#[must_use = "an operation is complete only when wait() or test() says so"]
pub struct Pending {
    endpoint: Arc<Endpoint>,
    peer: PeerId,
    /// The name of the operation, for errors.
    name: &'static str,
    /// The connection, until the operation has failed.
    queue_pair: Option<Arc<QueuePair>>,
    /// The batches in progress, in the order in which they were posted.
    batches: VecDeque<Arc<BatchStatus>>,
    failed: Option<Failure>,
    /// The owner of the memory that the operation accesses.
    _keepalive: Option<Arc<dyn Send + Sync>>,
}

impl Pending {
    /// Makes an operation on `peer` without any request yet.
    ///
    /// # Errors
    /// [`Error::Peer`] if the peer cannot be reached; [`Error::Os`].
    pub(crate) fn new(endpoint: &Arc<Endpoint>, peer: PeerId, name: &'static str) -> Result<Pending> {
        Pending::new_until(endpoint, peer, name, None)
    }

    /// Makes an operation on `peer` without any request yet. If a connection has to be made first,
    /// that must succeed before the deadline.
    ///
    /// # Errors
    /// [`Error::Peer`] if the peer cannot be reached, with [`Failure::Timeout`] at the deadline;
    /// [`Error::Os`].
    pub(crate) fn new_until(
        endpoint: &Arc<Endpoint>,
        peer: PeerId,
        name: &'static str,
        deadline: Option<Instant>,
    ) -> Result<Pending> {
        endpoint.check_owner()?;
        let queue_pair = Some(endpoint.connections.get(peer, deadline)?);
        Ok(Pending {
            endpoint: endpoint.clone(),
            peer,
            name,
            queue_pair,
            batches: VecDeque::new(),
            failed: None,
            _keepalive: None,
        })
    }

    /// Returns whether both operations use one connection, so that they complete in order.
    pub(crate) fn has_same_connection(&self, other: &Pending) -> bool {
        matches!((&self.queue_pair, &other.queue_pair), (Some(one), Some(two)) if Arc::ptr_eq(one, two))
    }

    /// Keeps `owner`, which keeps the memory registered, until this is dropped.
    pub(crate) fn with_keepalive(mut self, owner: Arc<dyn Send + Sync>) -> Pending {
        self._keepalive = Some(owner);
        self
    }

    /// Posts a request. Waits for room in the send queue.
    ///
    /// # Errors
    /// [`Error::Peer`] if there is no room in time; [`Error::Os`].
    ///
    /// # Safety
    /// The local memory stays mapped until the request completes. If the device writes there,
    /// nothing else accesses it.
    pub(crate) unsafe fn post(&mut self, operation: Operation, local: LocalSegment) -> Result<()> {
        // SAFETY: the caller keeps the contract.
        unsafe { self.post_all(&[(operation, local)]) }
    }

    /// Posts many requests, in batches.
    ///
    /// # Errors
    /// The errors of [`post`](Pending::post).
    ///
    /// # Safety
    /// The contract of [`post`](Pending::post), for each request.
    pub(crate) unsafe fn post_all(&mut self, requests: &[(Operation, LocalSegment)]) -> Result<()> {
        let endpoint = self.endpoint.clone();
        for requests in requests.chunks(endpoint.in_flight.max_batch()) {
            let Some(queue_pair) = self.queue_pair.clone() else {
                return Err(self.error(Failure::Flushed));
            };
            let timeout = endpoint.options.connect_timeout;
            let reserved = endpoint.in_flight.reserve(self.peer, requests.len(), &queue_pair, timeout)?;
            let Some(batch) = reserved else { return Err(self.error(Failure::Timeout)) };
            let last = batch.slots().last().copied();
            let work_requests = batch.slots().iter().zip(requests).map(|(&slot, &(operation, local))| {
                WorkRequest { id: slot.into(), operation, local, signaled: Some(slot) == last }
            });
            // SAFETY: the caller keeps the contract.
            if let Err((posted, error)) = unsafe { queue_pair.post(work_requests) } {
                match (posted, last) {
                    // The device has a part of the batch, of which it reports nothing without the
                    // signaled last request.
                    (1.., Some(last)) => {
                        queue_pair.fail(last.into());
                        endpoint.connections.discard(self.peer, &queue_pair);
                    }
                    _ => endpoint.in_flight.cancel(&batch),
                }
                return Err(error);
            }
            self.batches.push_back(batch.status);
            self.collect();
        }
        Ok(())
    }

    /// Posts a request without local memory.
    ///
    /// # Errors
    /// The errors of [`post`](Pending::post).
    pub(crate) fn post_empty(&mut self, operation: Operation) -> Result<()> {
        // SAFETY: the request names no local memory.
        unsafe { self.post(operation, LocalSegment::EMPTY) }
    }

    fn error(&self, failure: Failure) -> Error {
        Error::Peer { host: self.peer.0, doing: self.name.into(), failure }
    }

    /// Collects the status of completed batches, and returns whether all have completed.
    fn collect(&mut self) -> bool {
        while let Some(first) = self.batches.front() {
            let Some(status) = first.get() else { return false };
            self.batches.pop_front();
            if status != 0 {
                // The first failure is the cause of the others.
                self.failed.get_or_insert(Failure::from_status(status));
            }
        }
        true
    }

    fn result(&mut self) -> Result<()> {
        match self.failed {
            None => Ok(()),
            Some(failure) => {
                // After a failure the connection flushes all requests.
                if let Some(queue_pair) = self.queue_pair.take() {
                    self.endpoint.connections.discard(self.peer, &queue_pair);
                }
                Err(self.error(failure))
            }
        }
    }

    /// Returns whether the operation is complete, without waiting.
    ///
    /// # Errors
    /// [`Error::Peer`] if it has failed; [`Error::Forked`](hostbuf_register::Error::Forked) in a child of the process that began it.
    pub fn test(&mut self) -> Result<bool> {
        self.endpoint.check_owner()?;
        if !self.collect() {
            let endpoint = self.endpoint.clone();
            endpoint.in_flight.poll_once()?;
            if !self.collect() {
                return Ok(false);
            }
        }
        self.result().map(|()| true)
    }

    /// Waits until the operation is complete.
    ///
    /// # Errors
    /// [`Error::Peer`] if it has failed. If the peer is gone, it fails when the device's retries
    /// are used up.
    pub fn wait(mut self) -> Result<()> {
        self.endpoint.check_owner()?;
        let endpoint = self.endpoint.clone();
        endpoint.in_flight.wait(None, || self.collect())?;
        self.result()
    }

    /// Waits until the operation is complete, for at most `timeout`. Returns `false` if it is still
    /// in progress.
    ///
    /// # Errors
    /// The errors of [`wait`](Pending::wait).
    pub fn wait_timeout(&mut self, timeout: Duration) -> Result<bool> {
        self.endpoint.check_owner()?;
        let endpoint = self.endpoint.clone();
        if !endpoint.in_flight.wait(deadline(timeout), || self.collect())? {
            return Ok(false);
        }
        self.result().map(|()| true)
    }
}

impl std::fmt::Debug for Pending {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pending")
            .field("operation", &self.name)
            .field("host", &self.peer.0)
            .finish_non_exhaustive()
    }
}
