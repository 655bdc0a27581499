//! Messages between two ranks, from buffers anywhere: matched by channel, in order, and never more than there is room for.
//!
//! ```text
//!   short:  copied, and written into the next place at the receiver, who copies it out
//!   long:   send: registered by the cache ── head ──> receive: registered by the cache,
//!           let go    <── taken ──                             read from where it lies
//! ```

#![allow(unsafe_code)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::error::{Error, Failure, Result};
use crate::rdma::connect::endpoint::{Endpoint, Listener};
use crate::rdma::connect::pending::Pending;
use crate::rdma::messages::channel_state::{End, MESSAGE, Receiver, Sender, TAKEN, Writes, held};
use crate::rdma::messages::ring::{Boxes, Head, Over};
use crate::rdma::verbs::in_flight::deadline;
use crate::rdma::verbs::queue_pair::What;
use crate::register::{Access, Lease, RegistrationCache, Span, Stats, Verbs};

/// How often a side that waits for the other one asks whether it is there at all.
pub(crate) const ALIVE: Duration = Duration::from_secs(1);
/// The most bytes of one read.
const LONGEST: usize = 1 << 30;

/// One end of a channel: a persistent pair of queues, one in each direction, between this rank and another. Made by
/// [`connect`](Channel::connect).
///
/// Several threads may use one; those that send wait for each other, and so do those that receive.
///
/// When the last of a rank's channels is dropped its memory, its connections and its thread go. Dropping one waits until what
/// was sent has left this host; what the other side has not received by then is lost if it was long, since it is read from
/// here.
pub struct Channel {
    pub(crate) shared: Arc<Shared>,
    pub(crate) index: usize,
}

/// What the channels of a rank share.
pub(crate) struct Shared {
    // In the order in which they end.
    pub(crate) _listener: Listener,
    pub(crate) ends: Arc<[End]>,
    pub(crate) cache: RegistrationCache<Verbs>,
    pub(crate) endpoint: Arc<Endpoint>,
    pub(crate) boxes: Arc<Boxes>,
}

/// A message that was begun: its bytes are borrowed until it is over, and dropping it waits for that.
#[must_use = "a message that nobody waits for is waited for where it is dropped"]
pub struct Sending<'c> {
    channel: &'c Channel,
    number: u64,
    /// What the other side reads.
    lease: Option<Lease<'c, Verbs>>,
}

impl Channel {
    /// The rank at the other end.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.end().rank
    }

    /// What the channel is called, among those to the same rank.
    #[must_use]
    pub fn tag(&self) -> u32 {
        self.end().tag
    }

    /// What the registration cache of this rank's channels has done.
    #[must_use]
    pub fn registrations(&self) -> Stats {
        self.shared.cache.stats()
    }

    /// The memory in `span` is about to change in a way that nobody tells: see
    /// [`RegistrationCache::invalidate`]. What is being sent stays registered until it has been sent.
    ///
    /// # Errors
    /// As there.
    pub fn invalidate(&self, span: Span) -> Result<()> {
        Ok(self.shared.cache.invalidate(span)?)
    }

    /// Sends `bytes`, and comes back when they may be changed: a short message has been copied by then, a long one has been
    /// received.
    ///
    /// # Errors
    /// As [`begin_send`](Channel::begin_send) and [`Sending::wait`].
    pub fn send(&self, bytes: &[u8]) -> Result<()> {
        self.begin_send(bytes)?.wait()
    }

    /// Begins to send `bytes`. Waits while the other side has as many messages that it has not received as there are places
    /// for.
    ///
    /// # Errors
    /// [`Error::Peer`] when the other side does not answer any more; for a long message as
    /// [`RegistrationCache::get`]. Nothing was sent then.
    pub fn begin_send<'c>(&'c self, bytes: &'c [u8]) -> Result<Sending<'c>> {
        self.shared.endpoint.check_here()?;
        let (end, boxes) = (self.end(), &self.shared.boxes);
        let layout = boxes.layout();
        let long = bytes.len() > layout.eager;
        let lease = match long {
            true => Some(self.shared.cache.get(bytes.as_ptr(), bytes.len(), Access::REMOTE_READ)?),
            false => None,
        };
        let mut sender = held(&end.sending);
        let Sender { sent, writes } = &mut *sender;
        let room = || *sent - boxes.taken(self.index) < layout.places as u64;
        // Places of messages that were lost do not come back.
        self.wait("sending", None, &room, &mut || self.reap(writes))?;
        self.reap(writes)?;
        end.check("sending")?;
        let number = *sent + 1;
        let (at, key) =
            lease.as_ref().map_or((0, 0), |lease| (bytes.as_ptr() as u64, u64::from(lease.key().rkey)));
        let head = Head { number, length: bytes.len() as u64, at, key };
        // SAFETY: with the lock this is the only sender, and there is room.
        let local = unsafe { boxes.fill(self.index, head, if long { &[] } else { bytes }) };
        let there = end.boxes.0 + layout.incoming(end.there, number) as u64;
        self.tell(writes, MESSAGE, there, local)?;
        *sent = number;
        Ok(Sending { channel: self, number, lease })
    }

    /// Receives the next message into the beginning of `into`; how long it is.
    ///
    /// # Errors
    /// [`Error::Invalid`] when it is longer than `into`: it is still there, for a longer one. [`Error::Peer`] when the other
    /// side does not answer any more; for a long message as [`RegistrationCache::get`].
    pub fn receive(&self, into: &mut [u8]) -> Result<usize> {
        self.receive_until(into, None).map(|length| length.expect("without a limit it waits"))
    }

    /// The same; `None`: none has come in that time. A long message that has come is read to its end, however long that takes.
    ///
    /// # Errors
    /// As [`receive`](Channel::receive).
    pub fn receive_timeout(&self, into: &mut [u8], timeout: Duration) -> Result<Option<usize>> {
        self.receive_until(into, deadline(timeout))
    }

    fn receive_until(&self, into: &mut [u8], until: Option<Instant>) -> Result<Option<usize>> {
        self.shared.endpoint.check_here()?;
        let (end, boxes) = (self.end(), &self.shared.boxes);
        let mut receiver = held(&end.receiving);
        let Receiver { taken, told, writes } = &mut *receiver;
        let number = *taken + 1;
        if !self.wait("receiving", until, &|| end.came() >= number, &mut || self.reap(writes))? {
            return Ok(None);
        }
        // SAFETY: it has come, and is taken below.
        let head = unsafe { boxes.head(self.index, number) };
        if head.number != number {
            // What told of it came by another connection than the message, which is lost.
            return Err(Error::Peer { host: end.rank, doing: "receive".into(), failure: Failure::Flushed });
        }
        let length = head.length as usize;
        if length > into.len() {
            return Err(Error::invalid(format!(
                "a message of {length} bytes from rank {} (tag {}) for a buffer of {}: it is still there",
                end.rank,
                end.tag,
                into.len()
            )));
        }
        let long = length > boxes.layout().eager;
        if long {
            self.read(&mut into[..length], head.at, head.key as u32)?;
        } else {
            // SAFETY: as above; the sender puts no more bytes there.
            unsafe { boxes.copy(self.index, number, &mut into[..length]) };
        }
        *taken = number;
        // Places are given back some at a time; whoever sends a long message waits for it.
        if long || *taken - *told >= (boxes.layout().places as u64).div_ceil(2) {
            let local = boxes.take(self.index, *taken);
            let there = end.boxes.0 + boxes.layout().taken(end.there) as u64;
            match self.tell(writes, TAKEN, there, local) {
                Ok(()) => *told = *taken,
                // The message is here all the same; the next one is not to be had.
                Err(error) => {
                    tracing::warn!(rank = end.rank, tag = end.tag, %error, "the other side does not hear that a message was taken");
                    let failure =
                        if let Error::Peer { failure, .. } = error { failure } else { Failure::Flushed };
                    end.break_off(boxes, self.index, failure);
                }
            }
        }
        Ok(Some(length))
    }

    fn end(&self) -> &End {
        &self.shared.ends[self.index]
    }

    /// Reads bytes of the other side.
    fn read(&self, into: &mut [u8], at: u64, key: u32) -> Result<()> {
        let lease = self.shared.cache.get(into.as_ptr(), into.len(), Access::WRITE)?;
        let mut reading = Pending::to(&self.shared.endpoint, self.end().rank, "receive")?;
        let mut done = 0;
        while done < into.len() {
            let length = LONGEST.min(into.len() - done);
            let what = What::Read { address: at + done as u64, key };
            let local = (into.as_mut_ptr() as usize + done, length as u32, lease.key().lkey);
            // SAFETY: the bytes are borrowed here, registered by the lease, and nobody goes on before the end of what has begun.
            if let Err(error) = unsafe { reading.post(what, local) } {
                let _ = reading.wait();
                return Err(error);
            }
            done += length;
        }
        reading.wait()
    }

    /// Writes into the other side's boxes, and tells.
    ///
    /// # Errors
    /// [`Error::Peer`]: it was not told.
    fn tell(&self, writes: &mut Writes, what: u32, there: u64, local: (usize, u32, u32)) -> Result<()> {
        let end = self.end();
        let mut write = Pending::to(&self.shared.endpoint, end.rank, "send")?;
        if writes.0.back().is_some_and(|last| !last.is_by_the_same_connection(&write)) {
            // Others have had the connection replaced: whether all has arrived by the old one is to be known first.
            end.reap(writes, &self.shared.boxes, self.index, true)?;
            end.check("sending")?;
        }
        let number = 2 * end.there as u32 + what;
        // SAFETY: this side's boxes, which live longer than the endpoint's connections.
        unsafe { write.post(What::WriteAndTell { address: there, key: end.boxes.1, number }, local)? };
        writes.0.push_back(write);
        Ok(())
    }

    fn reap(&self, writes: &mut Writes) -> Result<()> {
        self.end().reap(writes, &self.shared.boxes, self.index, false)
    }

    /// Waits until something has been told that makes `ready` true. `false`: the time is over. From time to time `check` looks
    /// whether what this side has told has arrived.
    ///
    /// # Errors
    /// [`Error::Peer`]: the other side is not there any more, or one of both has lost something; as `check`.
    fn wait(
        &self,
        doing: &'static str,
        until: Option<Instant>,
        ready: &dyn Fn() -> bool,
        check: &mut dyn FnMut() -> Result<()>,
    ) -> Result<bool> {
        self.shared.endpoint.check_here()?;
        let end = self.end();
        let mut again = Instant::now() + ALIVE;
        loop {
            if ready() {
                return Ok(true);
            }
            end.check(doing)?;
            let now = Instant::now();
            if until.is_some_and(|until| now >= until) {
                return Ok(false);
            }
            if now < again {
                let next = until.map_or(again, |until| until.min(again));
                end.sleep_unless(ready, next - now);
                continue;
            }
            check()?;
            if !ready() {
                end.check(doing)?;
            }
            // What has come before the other side said that it is over is still to be had.
            match self.ask_whether_it_is_there(doing, until) {
                Err(_) if ready() => return Ok(true),
                Err(Error::Peer { failure: Failure::Timeout, .. })
                    if until.is_some_and(|u| Instant::now() >= u) => {}
                result => result?,
            }
            again = Instant::now() + ALIVE;
        }
    }

    /// A read is answered by the other side's device as long as its process lives; and it says whether the channel is over
    /// there, so that nobody waits for what is lost.
    fn ask_whether_it_is_there(&self, doing: &'static str, until: Option<Instant>) -> Result<()> {
        let (end, boxes) = (self.end(), &self.shared.boxes);
        let mut asking = Pending::to_until(&self.shared.endpoint, end.rank, doing, until)?;
        let address = end.boxes.0 + boxes.layout().over(end.there) as u64;
        // SAFETY: a word of this side's boxes, which live longer than the endpoint's connections.
        unsafe { asking.post(What::Read { address, key: end.boxes.1 }, boxes.theirs(self.index))? };
        let failed = |failure| Err(Error::Peer { host: end.rank, doing: doing.into(), failure });
        let left = until.map_or(Duration::MAX, |until| until.saturating_duration_since(Instant::now()));
        if !asking.wait_timeout(left)? {
            return failed(Failure::Timeout);
        }
        match boxes.said_over(self.index) {
            None => Ok(()),
            Some(Over::Lost) => failed(Failure::GaveUp),
            Some(Over::Closed) => failed(Failure::Closed),
        }
    }
}

impl Sending<'_> {
    fn is_taken(&self) -> bool {
        self.lease.is_none() || self.channel.shared.boxes.taken(self.channel.index) >= self.number
    }

    /// Whether its bytes may be changed again, without waiting.
    #[must_use]
    pub fn test(&self) -> bool {
        self.is_taken()
    }

    /// Waits until its bytes may be changed again.
    ///
    /// # Errors
    /// [`Error::Peer`] when the other side does not answer any more.
    pub fn wait(mut self) -> Result<()> {
        self.finish()
    }

    fn finish(&mut self) -> Result<()> {
        let channel = self.channel;
        let (end, boxes) = (channel.end(), &channel.shared.boxes);
        let result = channel.wait("sending", None, &|| self.is_taken(), &mut || {
            end.look_after(boxes, channel.index);
            Ok(())
        });
        let span = self.lease.take().map(|lease| lease.span());
        // The other side may read for longer than this one waits: it shall find nothing, rather than what comes next.
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
        if !self.shared.endpoint.is_here() {
            // The parent's.
            return;
        }
        let (end, boxes) = (self.end(), &self.shared.boxes);
        for writes in [&mut held(&end.sending).writes, &mut held(&end.receiving).writes] {
            if let Err(error) = end.reap(writes, boxes, self.index, true) {
                tracing::warn!(%error, "it is not known whether what was sent last has arrived");
            }
            writes.0.clear();
        }
        // Who has gone wants nothing any more.
        match end.check("sending") {
            Ok(()) | Err(Error::Peer { failure: Failure::NoAnswer | Failure::Flushed, .. }) => {}
            Err(error) => tracing::warn!(%error, "what was sent last has not arrived"),
        }
        // Others of this rank's channels may keep the boxes: who waits for this one shall not wait.
        boxes.say_over(self.index, Over::Closed);
    }
}

impl std::fmt::Debug for Channel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Channel")
            .field("rank", &self.rank())
            .field("tag", &self.tag())
            .finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Sending<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sending").field("to", &self.channel.rank()).finish_non_exhaustive()
    }
}
