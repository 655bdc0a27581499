//! Messages between two ranks, in order, with flow control.
//!
//! ```text
//!   eager:       the sender copies the message to a slot, and writes it to the receiver's slot
//!   rendezvous:  sender: registers memory ── header ───────────> receiver: registers memory,
//!                releases it              <── acknowledgement ──           reads the bytes
//! ```

#![allow(unsafe_code, reason = "reads and writes slots that devices access too")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::connect::endpoint::Endpoint;
use crate::connect::pending::Pending;
use crate::connect::progress_thread::ProgressThread;
use crate::limits::{ALIVE_INTERVAL, MAX_REQUEST_BYTES};
use crate::messages::channel_state::{ChannelState, Notification, PendingWrites, ReceiveState, SendState};
use crate::messages::ring::{ChannelIndex, ChannelStatus, MessageHeader, Rings};
use crate::messages::tag::Tag;
use crate::peer::PeerId;
use crate::sync::{deadline, lock, time_left};
use crate::verbs::work_request::{LocalKey, LocalSegment, Operation, RemoteKey, RemoteSegment};
use hostbuf::error::{Error, Failure, Result};
use hostbuf_register::{Access, Lease, RegistrationCache, Span, Stats, Verbs};

/// One end of a channel: a queue of messages in each direction between this rank and another one.
/// Made by [`connect`](Channel::connect).
///
/// Several threads may use a channel. Threads that send wait for each other, and so do threads that
/// receive.
///
/// When the last channel of a rank is dropped, its memory, its connections and its thread end.
/// Dropping a channel waits until all messages have left this host. A rendezvous message that the
/// other side has not received by then is lost, since the receiver reads it from this host.
pub struct Channel {
    pub(crate) set: Arc<ChannelSet>,
    pub(crate) index: ChannelIndex,
}

/// The objects that all channels of a rank share.
pub(crate) struct ChannelSet {
    // In the order in which they are dropped.
    pub(crate) _progress: ProgressThread,
    pub(crate) states: Arc<[ChannelState]>,
    pub(crate) cache: RegistrationCache<Verbs>,
    pub(crate) endpoint: Arc<Endpoint>,
    pub(crate) rings: Arc<Rings>,
}

/// A message that is being sent. Its bytes are borrowed until it is complete. Dropping this waits
/// for that.
#[must_use = "dropping a Sending waits until the message is complete"]
pub struct Sending<'c> {
    channel: &'c Channel,
    number: u64,
    /// The lease of the bytes that the receiver reads, for a rendezvous message.
    lease: Option<Lease<'c, Verbs>>,
}

impl Channel {
    /// Returns the process at the other end.
    #[must_use]
    pub fn peer(&self) -> PeerId {
        self.state().peer
    }

    /// Returns the tag, which distinguishes channels to the same process.
    #[must_use]
    pub fn tag(&self) -> Tag {
        self.state().tag
    }

    /// Returns the statistics of the registration cache that this rank's channels share.
    #[must_use]
    pub fn registrations(&self) -> Stats {
        self.set.cache.stats()
    }

    /// Invalidates registrations of the memory in `span`, which is about to change in a way that
    /// the monitor does not detect: see [`RegistrationCache::invalidate`]. Memory that is being
    /// sent stays registered until that is complete.
    ///
    /// # Errors
    /// The errors of [`RegistrationCache::invalidate`].
    pub fn invalidate(&self, span: Span) -> Result<()> {
        Ok(self.set.cache.invalidate(span)?)
    }

    /// Sends `bytes`, and returns when they may be changed: an eager message has been copied by
    /// then, a rendezvous message received.
    ///
    /// # Errors
    /// The errors of [`begin_send`](Channel::begin_send) and [`Sending::wait`].
    pub fn send(&self, bytes: &[u8]) -> Result<()> {
        self.begin_send(bytes)?.wait()
    }

    /// Begins to send `bytes`. Waits while as many messages as there are slots are not
    /// acknowledged.
    ///
    /// # Errors
    /// [`Error::Peer`] if the other side does not respond; for a rendezvous message also the errors
    /// of [`RegistrationCache::get`]. On an error nothing was sent.
    pub fn begin_send<'c>(&'c self, bytes: &'c [u8]) -> Result<Sending<'c>> {
        self.set.endpoint.check_owner()?;
        let (state, rings) = (self.state(), &self.set.rings);
        let layout = rings.layout();
        let is_eager = bytes.len() <= layout.eager;
        let lease = match is_eager {
            true => None,
            false => Some(self.set.cache.get(bytes.as_ptr(), bytes.len(), Access::REMOTE_READ)?),
        };
        let mut sending = lock(&state.sending);
        let SendState { sent, writes } = &mut *sending;
        let has_slot = || *sent - rings.acknowledged(self.index) < layout.slots as u64;
        // The slots of lost messages are never acknowledged: collecting the writes detects the
        // loss.
        self.wait("sending", None, &has_slot, &mut || self.collect(writes))?;
        self.collect(writes)?;
        state.check("sending")?;
        let number = *sent + 1;
        let (address, rkey) =
            lease.as_ref().map_or((0, 0), |lease| (bytes.as_ptr() as u64, u64::from(lease.key().rkey)));
        let header = MessageHeader { number, length: bytes.len() as u64, address, rkey };
        // SAFETY: the lock makes this the only sender, and a slot is free.
        let local = unsafe { rings.fill(self.index, header, if is_eager { bytes } else { &[] }) };
        let slot = state.peer_rings.at(layout.incoming(state.peer_channel, number));
        self.write_and_notify(writes, Notification::Message, slot, local)?;
        *sent = number;
        Ok(Sending { channel: self, number, lease })
    }

    /// Receives the next message into the beginning of `into`, and returns its length.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the message is longer than `into`; it can still be received into a
    /// longer buffer. [`Error::Peer`] if the other side does not respond; for a rendezvous message
    /// also the errors of [`RegistrationCache::get`].
    pub fn receive(&self, into: &mut [u8]) -> Result<usize> {
        self.receive_until(into, None).map(|length| length.expect("without a deadline it waits"))
    }

    /// Receives the next message like [`receive`](Channel::receive), and returns `None` if none
    /// arrives within `timeout`. A rendezvous message that has arrived is read completely, which
    /// may take longer.
    ///
    /// # Errors
    /// The errors of [`receive`](Channel::receive).
    pub fn receive_timeout(&self, into: &mut [u8], timeout: Duration) -> Result<Option<usize>> {
        self.receive_until(into, deadline(timeout))
    }

    fn receive_until(&self, into: &mut [u8], deadline: Option<Instant>) -> Result<Option<usize>> {
        self.set.endpoint.check_owner()?;
        let (state, rings) = (self.state(), &self.set.rings);
        let mut receiving = lock(&state.receiving);
        let ReceiveState { received, acknowledged, writes } = &mut *receiving;
        let number = *received + 1;
        let has_arrived = || state.arrived() >= number;
        if !self.wait("receiving", deadline, &has_arrived, &mut || self.collect(writes))? {
            return Ok(None);
        }
        // SAFETY: the message has arrived, and is acknowledged only below.
        let header = unsafe { rings.header(self.index, number) };
        if header.number != number {
            // The notification arrived on another connection than the message, which is lost.
            let doing = "receive".into();
            return Err(Error::Peer { host: state.peer.0, doing, failure: Failure::Flushed });
        }
        let length = header.length as usize;
        if length > into.len() {
            return Err(Error::invalid(format!(
                "cannot receive a message of {length} bytes from rank {} (tag {}) into a buffer of {} bytes: receive it into a longer one",
                state.peer,
                state.tag,
                into.len()
            )));
        }
        let is_eager = length <= rings.layout().eager;
        if is_eager {
            // SAFETY: as above; the sender wrote `length` bytes behind the header.
            unsafe { rings.copy(self.index, number, &mut into[..length]) };
        } else {
            let remote = RemoteSegment { address: header.address, rkey: RemoteKey(header.rkey as u32) };
            self.read(&mut into[..length], remote)?;
        }
        *received = number;
        // Acknowledgements are batched, except for rendezvous messages, for which the sender waits.
        if !is_eager || *received - *acknowledged >= (rings.layout().slots as u64).div_ceil(2) {
            let local = rings.acknowledge(self.index, *received);
            let word = state.peer_rings.at(rings.layout().acknowledged(state.peer_channel));
            match self.write_and_notify(writes, Notification::Acknowledgement, word, local) {
                Ok(()) => *acknowledged = *received,
                // This message was received, so the error is that of the next call.
                Err(error) => {
                    tracing::warn!(rank = state.peer.0, tag = state.tag.0, %error, "cannot acknowledge a message");
                    let failure =
                        if let Error::Peer { failure, .. } = error { failure } else { Failure::Flushed };
                    state.fail(rings, self.index, failure);
                }
            }
        }
        Ok(Some(length))
    }

    fn state(&self) -> &ChannelState {
        &self.set.states[self.index.0]
    }

    /// Reads bytes of the other side.
    fn read(&self, into: &mut [u8], remote: RemoteSegment) -> Result<()> {
        let lease = self.set.cache.get(into.as_ptr(), into.len(), Access::WRITE)?;
        let mut read = Pending::new(&self.set.endpoint, self.state().peer, "receive")?;
        let mut done = 0;
        while done < into.len() {
            let length = MAX_REQUEST_BYTES.min(into.len() - done);
            let address = into.as_mut_ptr() as usize + done;
            let local = LocalSegment { address, length: length as u32, lkey: LocalKey(lease.key().lkey) };
            // SAFETY: the bytes are borrowed, and the lease keeps them registered. This function
            // returns only after the request is complete.
            if let Err(error) = unsafe { read.post(Operation::Read(remote.offset(done)), local) } {
                let _ = read.wait();
                return Err(error);
            }
            done += length;
        }
        read.wait()
    }

    /// Writes to the other side's rings, and notifies it.
    ///
    /// # Errors
    /// [`Error::Peer`]: the other side was not notified.
    fn write_and_notify(
        &self,
        writes: &mut PendingWrites,
        notification: Notification,
        remote: RemoteSegment,
        local: LocalSegment,
    ) -> Result<()> {
        let state = self.state();
        let mut write = Pending::new(&self.set.endpoint, state.peer, "send")?;
        if writes.0.back().is_some_and(|last| !last.has_same_connection(&write)) {
            // Another thread has replaced the connection. All writes on the old one must have
            // arrived.
            state.collect(writes, &self.set.rings, self.index, true)?;
            state.check("sending")?;
        }
        let immediate = notification.encode(state.peer_channel);
        // SAFETY: the memory of this side's rings, which outlives the endpoint's connections.
        unsafe { write.post(Operation::WriteWithImmediate { remote, immediate }, local)? };
        writes.0.push_back(write);
        Ok(())
    }

    fn collect(&self, writes: &mut PendingWrites) -> Result<()> {
        self.state().collect(writes, &self.set.rings, self.index, false)
    }

    /// Waits until `ready` returns true, and calls `check` from time to time. Returns `false` at
    /// the deadline.
    ///
    /// # Errors
    /// [`Error::Peer`] if the other side is gone, or one of both sides has failed; the errors of
    /// `check`.
    fn wait(
        &self,
        doing: &'static str,
        deadline: Option<Instant>,
        ready: &dyn Fn() -> bool,
        check: &mut dyn FnMut() -> Result<()>,
    ) -> Result<bool> {
        self.set.endpoint.check_owner()?;
        let state = self.state();
        let mut next_check = Instant::now() + ALIVE_INTERVAL;
        loop {
            if ready() {
                return Ok(true);
            }
            state.check(doing)?;
            let now = Instant::now();
            if deadline.is_some_and(|deadline| now >= deadline) {
                return Ok(false);
            }
            if now < next_check {
                let wake_up = deadline.map_or(next_check, |deadline| deadline.min(next_check));
                state.sleep_unless(ready, wake_up - now);
                continue;
            }
            check()?;
            if !ready() {
                state.check(doing)?;
            }
            // Messages that arrived before the other side failed or closed can still be received.
            match self.check_peer(doing, deadline) {
                Err(_) if ready() => return Ok(true),
                Err(Error::Peer { failure: Failure::Timeout, .. })
                    if deadline.is_some_and(|deadline| Instant::now() >= deadline) => {}
                result => result?,
            }
            next_check = Instant::now() + ALIVE_INTERVAL;
        }
    }

    /// Reads the status of the other side. The device there responds as long as the process exists.
    ///
    /// # Errors
    /// [`Error::Peer`] if the other side does not respond, has failed, or has closed the channel.
    fn check_peer(&self, doing: &'static str, deadline: Option<Instant>) -> Result<()> {
        let (state, rings) = (self.state(), &self.set.rings);
        let mut read = Pending::new_until(&self.set.endpoint, state.peer, doing, deadline)?;
        let status = state.peer_rings.at(rings.layout().status(state.peer_channel));
        // SAFETY: a word of this side's rings, which outlive the endpoint's connections.
        unsafe { read.post(Operation::Read(status), rings.peer_status_word(self.index))? };
        let failed = |failure| Err(Error::Peer { host: state.peer.0, doing: doing.into(), failure });
        if !read.wait_timeout(time_left(deadline))? {
            return failed(Failure::Timeout);
        }
        match rings.peer_status(self.index) {
            None => Ok(()),
            Some(ChannelStatus::Failed) => failed(Failure::GaveUp),
            Some(ChannelStatus::Closed) => failed(Failure::Closed),
        }
    }
}

impl Sending<'_> {
    fn is_complete(&self) -> bool {
        self.lease.is_none() || self.channel.set.rings.acknowledged(self.channel.index) >= self.number
    }

    /// Returns whether the bytes may be changed again, without waiting.
    #[must_use]
    pub fn test(&self) -> bool {
        self.is_complete()
    }

    /// Waits until the bytes may be changed again.
    ///
    /// # Errors
    /// [`Error::Peer`] if the other side does not respond.
    pub fn wait(mut self) -> Result<()> {
        self.finish()
    }

    fn finish(&mut self) -> Result<()> {
        let channel = self.channel;
        let (state, rings) = (channel.state(), &channel.set.rings);
        let result = channel.wait("sending", None, &|| self.is_complete(), &mut || {
            state.try_collect(rings, channel.index);
            Ok(())
        });
        let span = self.lease.take().map(|lease| lease.span());
        // The other side may read later than this side waits. It must get an error rather than
        // bytes that were written there since.
        if let (Err(_), Some(span)) = (&result, span) {
            self.channel.invalidate(span)?;
        }
        result.map(drop)
    }
}

impl Drop for Sending<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.finish() {
            tracing::warn!(%error, "a message was not received");
        }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        if !self.set.endpoint.is_owned() {
            // It belongs to the parent process.
            return;
        }
        let (state, rings) = (self.state(), &self.set.rings);
        for writes in [&mut lock(&state.sending).writes, &mut lock(&state.receiving).writes] {
            if let Err(error) = state.collect(writes, rings, self.index, true) {
                tracing::warn!(%error, "cannot determine whether the last messages have arrived");
            }
            writes.0.clear();
        }
        // A peer that is gone needs no messages.
        match state.check("sending") {
            Ok(()) | Err(Error::Peer { failure: Failure::NoAnswer | Failure::Flushed, .. }) => {}
            Err(error) => tracing::warn!(%error, "the last messages have not arrived"),
        }
        // Other channels of this rank may keep the rings, so the peer would wait without the
        // status.
        rings.set_status(self.index, ChannelStatus::Closed);
    }
}

impl std::fmt::Debug for Channel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Channel")
            .field("peer", &self.peer().0)
            .field("tag", &self.tag().0)
            .finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Sending<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sending").field("to", &self.channel.peer().0).finish_non_exhaustive()
    }
}
