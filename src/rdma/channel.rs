//! Messages between two ranks, from buffers anywhere: matched by channel, in order, and never more than there is room for.
//!
//! ```text
//!   short:  copied, and written into the next place at the receiver, who copies it out
//!   long:   send: registered by the cache ── head ──> receive: registered by the cache,
//!           let go    <── taken ──                             read from where it lies
//! ```

#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use crate::error::{Error, Failure, Result};
use crate::rdma::boxes::{Boxes, Head};
use crate::rdma::endpoint::{Endpoint, Listener};
use crate::rdma::flights::deadline;
use crate::rdma::pair::What;
use crate::rdma::pending::Pending;
use crate::register::{Access, Lease, RegistrationCache, Span, Stats, Verbs};

/// How often a side that waits for the other one asks whether it is there at all.
const ALIVE: Duration = Duration::from_secs(1);
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
    pub(super) shared: Arc<Shared>,
    pub(super) index: usize,
}

/// What the channels of a rank share.
pub(super) struct Shared {
    // In the order in which they end.
    pub(super) _listener: Listener,
    pub(super) ends: Arc<[End]>,
    pub(super) cache: RegistrationCache<Verbs>,
    pub(super) endpoint: Arc<Endpoint>,
    pub(super) boxes: Boxes,
}

/// What is known about one channel.
pub(super) struct End {
    /// The other rank, and what the channel is called.
    pub(super) rank: usize,
    pub(super) tag: u32,
    /// Which of the other rank's channels this is; where its boxes begin, and the key to them.
    pub(super) there: usize,
    pub(super) boxes: (u64, u32),
    /// How many messages have come.
    came: AtomicU64,
    lock: Mutex<()>,
    told: Condvar,
    sending: Mutex<Sender>,
    receiving: Mutex<Receiver>,
}

#[derive(Default)]
struct Sender {
    sent: u64,
    writes: Writes,
}

#[derive(Default)]
struct Receiver {
    taken: u64,
    told: u64,
    writes: Writes,
}

/// Writes into the other side's boxes.
#[derive(Default)]
struct Writes {
    /// Those whose end has not been seen.
    under_way: VecDeque<Pending>,
    /// The first that failed: what was told by it is lost, and nothing that is told later makes up for it.
    failed: Option<Failure>,
}

/// What the two sides tell each other: this, and twice the number of the other's channel.
const MESSAGE: u32 = 0;
const TAKEN: u32 = 1;

fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl End {
    pub(super) fn new(rank: usize, tag: u32, there: usize, boxes: (u64, u32)) -> End {
        End {
            rank,
            tag,
            there,
            boxes,
            came: AtomicU64::new(0),
            lock: Mutex::new(()),
            told: Condvar::new(),
            sending: Mutex::default(),
            receiving: Mutex::default(),
        }
    }
}

/// The other side has told something.
pub(super) fn hear(ends: &[End], number: u32) {
    let Some(end) = ends.get(number as usize / 2) else { return };
    if number % 2 == MESSAGE {
        end.came.fetch_add(1, Ordering::Release);
    }
    drop(held(&end.lock));
    end.told.notify_all();
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
        self.shared.cache.invalidate(span)
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
        self.wait("sending", None, &room, &mut || self.reap(writes, false))?;
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

    /// The same; `None`: none has come in that time.
    ///
    /// # Errors
    /// As [`receive`](Channel::receive).
    pub fn receive_timeout(&self, into: &mut [u8], timeout: Duration) -> Result<Option<usize>> {
        self.receive_until(into, deadline(timeout))
    }

    fn receive_until(&self, into: &mut [u8], until: Option<Instant>) -> Result<Option<usize>> {
        let (end, boxes) = (self.end(), &self.shared.boxes);
        let mut receiver = held(&end.receiving);
        let number = receiver.taken + 1;
        let has_come = || end.came.load(Ordering::Acquire) >= number;
        if !self.wait("receiving", until, &has_come, &mut || self.reap(&mut receiver.writes, false))? {
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
        receiver.taken = number;
        // Places are given back some at a time; whoever sends a long message waits for it.
        if long || receiver.taken - receiver.told >= (boxes.layout().places as u64).div_ceil(2) {
            let local = boxes.take(self.index, receiver.taken);
            let there = end.boxes.0 + boxes.layout().taken(end.there) as u64;
            self.tell(&mut receiver.writes, TAKEN, there, local)?;
            receiver.told = receiver.taken;
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
    /// [`Error::Peer`]; from then on always, since what was told before may be lost.
    fn tell(&self, writes: &mut Writes, what: u32, there: u64, local: (usize, u32, u32)) -> Result<()> {
        let end = self.end();
        self.reap(writes, false)?;
        let mut write = Pending::to(&self.shared.endpoint, end.rank, "send")?;
        if writes.under_way.back().is_some_and(|last| !last.is_by_the_same_connection(&write)) {
            // Others have had the connection replaced: whether all has arrived by the old one is to be known first.
            self.reap(writes, true)?;
        }
        let number = 2 * end.there as u32 + what;
        // SAFETY: this side's boxes, which live longer than the endpoint's connections.
        unsafe { write.post(What::WriteAndTell { address: there, key: end.boxes.1, number }, local)? };
        writes.under_way.push_back(write);
        Ok(())
    }

    /// Forgets the writes that are over; all of them, with `wait`.
    ///
    /// # Errors
    /// [`Error::Peer`] of the first that failed, also the next time.
    fn reap(&self, writes: &mut Writes, wait: bool) -> Result<()> {
        while let Some(first) = writes.under_way.front_mut() {
            let over = if wait { first.wait_timeout(Duration::MAX) } else { first.test() };
            match over {
                Ok(false) => break,
                Ok(true) => {}
                Err(Error::Peer { failure, .. }) => {
                    writes.failed.get_or_insert(failure);
                    self.shared.boxes.break_off(self.index);
                }
                Err(other) => return Err(other),
            }
            writes.under_way.pop_front();
        }
        match writes.failed {
            None => Ok(()),
            Some(failure) => Err(Error::Peer { host: self.end().rank, doing: "send".into(), failure }),
        }
    }

    /// Waits until something has been told that makes `ready` true. `false`: the time is over. From time to time `check` says
    /// whether what is waited for can come at all.
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
        let mut asked = Instant::now();
        loop {
            let mut lock = held(&end.lock);
            loop {
                if ready() {
                    return Ok(true);
                }
                let now = Instant::now();
                if until.is_some_and(|until| now >= until) {
                    return Ok(false);
                }
                let again = asked + ALIVE;
                if now >= again {
                    break;
                }
                let next = until.map_or(again, |until| until.min(again));
                lock = end.told.wait_timeout(lock, next - now).unwrap_or_else(PoisonError::into_inner).0;
            }
            drop(lock);
            check()?;
            self.ask_whether_it_is_there(doing)?;
            asked = Instant::now();
        }
    }

    /// A read is answered by the other side's device as long as its process lives; and it says whether that side has lost
    /// something that this one may be waiting for.
    fn ask_whether_it_is_there(&self, doing: &'static str) -> Result<()> {
        let (end, boxes) = (self.end(), &self.shared.boxes);
        let mut asking = Pending::to(&self.shared.endpoint, end.rank, doing)?;
        let address = end.boxes.0 + boxes.layout().broken(end.there) as u64;
        // SAFETY: a word of this side's boxes, which live longer than the endpoint's connections.
        unsafe { asking.post(What::Read { address, key: end.boxes.1 }, boxes.theirs(self.index))? };
        asking.wait()?;
        match boxes.is_broken_there(self.index) {
            true => Err(Error::Peer { host: end.rank, doing: doing.into(), failure: Failure::GaveUp }),
            false => Ok(()),
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
        let mut check = || match channel.end().sending.try_lock() {
            Ok(mut sender) => channel.reap(&mut sender.writes, false),
            Err(TryLockError::Poisoned(sender)) => channel.reap(&mut sender.into_inner().writes, false),
            // Whoever has it asks this himself while he waits.
            Err(TryLockError::WouldBlock) => Ok(()),
        };
        let result = channel.wait("sending", None, &|| self.is_taken(), &mut check);
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
        let end = self.end();
        let writes = [
            std::mem::take(&mut held(&end.sending).writes.under_way),
            std::mem::take(&mut held(&end.receiving).writes.under_way),
        ];
        for write in writes.into_iter().flatten() {
            match write.wait() {
                // Who has gone wants nothing any more.
                Ok(()) | Err(Error::Peer { failure: Failure::NoAnswer | Failure::Flushed, .. }) => {}
                Err(error) => tracing::warn!(%error, "what was sent last has not arrived"),
            }
        }
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
