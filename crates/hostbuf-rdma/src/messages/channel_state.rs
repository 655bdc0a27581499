//! The state of a channel beside its rings: notifications that have arrived, and writes in
//! progress.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, TryLockError};
use std::time::Duration;

use hostbuf_os::poison::IgnorePoison;

use crate::connect::pending::Pending;
use crate::messages::ring::{ChannelIndex, ChannelStatus, PeerRings, Rings};
use crate::messages::tag::Tag;
use crate::peer::PeerId;
use crate::sync::lock;
use hostbuf::error::{Error, Failure, Result};

/// The kind of a notification between the ends of a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Notification {
    /// A message has been written.
    Message,
    /// Messages have been received.
    Acknowledgement,
}

impl Notification {
    /// Encodes the notification for the channel with index `channel` at the peer.
    pub(crate) fn encode(self, channel: ChannelIndex) -> u32 {
        2 * channel.0 as u32 + u32::from(self == Notification::Acknowledgement)
    }

    fn decode(immediate: u32) -> (ChannelIndex, Notification) {
        let kind =
            if immediate.is_multiple_of(2) { Notification::Message } else { Notification::Acknowledgement };
        (ChannelIndex(immediate as usize / 2), kind)
    }
}

/// The state of this end of a channel.
pub(crate) struct ChannelState {
    /// The process at the other end.
    pub(crate) peer: PeerId,
    pub(crate) tag: Tag,
    /// The index of the channel at the peer.
    pub(crate) peer_channel: ChannelIndex,
    /// The rings of all channels of the peer.
    pub(crate) peer_rings: PeerRings,
    pub(crate) sending: Mutex<SendState>,
    pub(crate) receiving: Mutex<ReceiveState>,
    /// The number of messages that have arrived.
    arrived: AtomicU64,
    /// The first failure of a write. The notification of that write is lost, and no later one
    /// replaces it.
    failed: OnceLock<Failure>,
    mutex: Mutex<()>,
    changed: Condvar,
}

#[derive(Default)]
pub(crate) struct SendState {
    /// The number of messages sent.
    pub(crate) sent: u64,
    pub(crate) writes: PendingWrites,
}

#[derive(Default)]
pub(crate) struct ReceiveState {
    /// The number of messages received.
    pub(crate) received: u64,
    /// The number of messages acknowledged.
    pub(crate) acknowledged: u64,
    pub(crate) writes: PendingWrites,
}

/// The writes to the peer's rings whose result is not known yet, in order.
#[derive(Default)]
pub(crate) struct PendingWrites(pub(crate) VecDeque<Pending>);

/// Locks `mutex` if no other thread holds it.
fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

impl ChannelState {
    pub(crate) fn new(
        peer: PeerId,
        tag: Tag,
        peer_channel: ChannelIndex,
        peer_rings: PeerRings,
    ) -> ChannelState {
        ChannelState {
            peer,
            tag,
            peer_channel,
            peer_rings,
            sending: Mutex::default(),
            receiving: Mutex::default(),
            arrived: AtomicU64::new(0),
            failed: OnceLock::new(),
            mutex: Mutex::new(()),
            changed: Condvar::new(),
        }
    }

    /// Returns the number of messages that have arrived.
    pub(crate) fn arrived(&self) -> u64 {
        self.arrived.load(Ordering::Acquire)
    }

    fn notify(&self, notification: Notification) {
        if notification == Notification::Message {
            self.arrived.fetch_add(1, Ordering::Release);
        }
        self.wake();
    }

    fn wake(&self) {
        drop(lock(&self.mutex));
        self.changed.notify_all();
    }

    /// Sleeps until a notification arrives or the channel fails, for at most `timeout`. Returns at
    /// once if `ready` returns true.
    pub(crate) fn sleep_unless(&self, ready: &dyn Fn() -> bool, timeout: Duration) {
        let guard = lock(&self.mutex);
        if !ready() && self.failed.get().is_none() {
            drop(self.changed.wait_timeout(guard, timeout).ignore_poison());
        }
    }

    /// Checks that no write of this side has failed.
    ///
    /// # Errors
    /// [`Error::Peer`].
    pub(crate) fn check(&self, doing: &'static str) -> Result<()> {
        match self.failed.get() {
            None => Ok(()),
            Some(&failure) => Err(Error::Peer { host: self.peer.0, doing: doing.into(), failure }),
        }
    }

    /// Marks the channel as failed. The peer reads that when it checks this side's status.
    pub(crate) fn fail(&self, rings: &Rings, index: ChannelIndex, failure: Failure) {
        if self.failed.set(failure).is_ok() {
            rings.set_status(index, ChannelStatus::Failed);
            self.wake();
        }
    }

    /// Collects the results of the writes in each direction that no other thread uses at the
    /// moment.
    pub(crate) fn try_collect(&self, rings: &Rings, index: ChannelIndex) {
        let mut result = Ok(());
        if let Some(mut sending) = try_lock(&self.sending) {
            result = self.collect(&mut sending.writes, rings, index, false);
        }
        if let Some(mut receiving) = try_lock(&self.receiving) {
            result = result.and(self.collect(&mut receiving.writes, rings, index, false));
        }
        if let Err(error) = result {
            tracing::warn!(rank = self.peer.0, %error, "cannot determine which messages have arrived");
        }
    }

    /// Collects the results of writes that are complete, or waits for all with `wait`. The channel
    /// fails if one of them has failed.
    ///
    /// # Errors
    /// [`Error::Os`].
    pub(crate) fn collect(
        &self,
        writes: &mut PendingWrites,
        rings: &Rings,
        index: ChannelIndex,
        wait: bool,
    ) -> Result<()> {
        while let Some(first) = writes.0.front_mut() {
            let complete = if wait { first.wait_timeout(Duration::MAX) } else { first.test() };
            match complete {
                Ok(false) => break,
                Ok(true) => {}
                Err(Error::Peer { failure, .. }) => self.fail(rings, index, failure),
                Err(other) => return Err(other),
            }
            writes.0.pop_front();
        }
        Ok(())
    }
}

/// Passes a notification of a peer to its channel.
pub(crate) fn dispatch(states: &[ChannelState], immediate: u32) {
    let (channel, notification) = Notification::decode(immediate);
    if let Some(state) = states.get(channel.0) {
        state.notify(notification);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decoding_reverses_encoding() {
        for channel in [0, 1, 77].map(ChannelIndex) {
            for notification in [Notification::Message, Notification::Acknowledgement] {
                assert_eq!(Notification::decode(notification.encode(channel)), (channel, notification));
            }
        }
    }
}
