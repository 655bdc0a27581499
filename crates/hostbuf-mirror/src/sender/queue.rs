//! The frames of a sender that are not acknowledged.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Instant;

use hostbuf_os::poison::IgnorePoison;
use hostbuf_pool::{BlockRef, Token};

use super::frame_outcome::FrameOutcome;
use super::sender_counters::{FrameTransport, SenderCounters};
use crate::error::MirrorError;
use crate::readiness::WakeEvent;
use crate::wire::{FrameAnswer, InvalidRecord};

/// The frames that are not acknowledged, shared by the callers and the thread of a sender.
#[derive(Debug)]
pub(super) struct FrameQueue {
    state: Mutex<QueueState>,
    /// Notified when frames leave the queue.
    left: Condvar,
    /// The event that wakes the thread of the sender.
    pub(super) wake: WakeEvent,
    /// The random number of the sender.
    pub(super) session: u128,
}

/// The state of the queue.
#[derive(Debug)]
pub(super) struct QueueState {
    /// The frames in the order of their numbers.
    frames: VecDeque<QueuedFrame>,
    /// The number of the next frame.
    next: u64,
    /// The number of the last frame that was answered.
    answered: u64,
    /// The number of frames that the receiver has published for this sender.
    acknowledged: u64,
    /// The address of the receiver.
    pub(super) peer: SocketAddr,
    /// The identity of the receiver, and the largest length of a frame.
    pub(super) receiver: (u128, u64),
    pub(super) counters: SenderCounters,
    /// The reason why there is no connection.
    pub(super) lost: Option<String>,
    /// The last reason why bytes were not offered to RDMA reads.
    pub(super) tcp_reason: Option<String>,
    pub(super) is_closed: bool,
}

/// A frame that is not acknowledged.
#[derive(Clone, Debug)]
pub(super) struct QueuedFrame {
    pub(super) number: u64,
    pub(super) token: Token,
    pub(super) block: Arc<BlockRef>,
    pub(super) deadline: Instant,
    pub(super) outcome: Arc<FrameOutcome>,
    /// The transport of the last attempt to send the frame.
    transport: Option<FrameTransport>,
}

impl FrameQueue {
    /// Makes an empty queue.
    pub(super) fn new(session: u128, wake: WakeEvent, peer: SocketAddr) -> FrameQueue {
        let state = QueueState {
            frames: VecDeque::new(),
            next: 1,
            answered: 0,
            acknowledged: 0,
            peer,
            receiver: (0, u64::MAX),
            counters: SenderCounters::default(),
            lost: None,
            tcp_reason: None,
            is_closed: false,
        };
        FrameQueue { state: Mutex::new(state), left: Condvar::new(), wake, session }
    }

    /// Notes the reason why the bytes of one frame, or of all frames of a connection, go by TCP
    /// although there is an RDMA device.
    pub(super) fn use_tcp(&self, why: String) {
        // Outside the lock: whoever reads the log may be slow.
        let peer = self.state().peer;
        tracing::warn!(%peer, why, "a mirror sends by TCP");
        self.state().tcp_reason = Some(why);
    }

    /// Returns the state.
    pub(super) fn state(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().ignore_poison()
    }

    /// Adds a frame when the window has space for it.
    ///
    /// # Errors
    /// [`MirrorError::Deadline`]; [`MirrorError::TooLong`]; [`MirrorError::Closed`].
    pub(super) fn add(
        &self,
        token: Token,
        block: BlockRef,
        deadline: Instant,
        window: u64,
    ) -> Result<Arc<FrameOutcome>, MirrorError> {
        let left = deadline.saturating_duration_since(Instant::now());
        // The numbers of all frames that wait for answers lie within the window, since a receiver
        // keeps as many answers.
        let is_full = |state: &mut QueueState| {
            !state.is_closed && state.frames.front().is_some_and(|first| state.next >= first.number + window)
        };
        let (mut state, waited) = self.left.wait_timeout_while(self.state(), left, is_full).ignore_poison();
        let most = state.receiver.1;
        if state.is_closed {
            return Err(MirrorError::Closed);
        } else if waited.timed_out() {
            return Err(state.deadline_error(token, 0));
        } else if token.length > most {
            return Err(MirrorError::TooLong { length: token.length, most, peer: state.peer });
        }
        let outcome = Arc::<FrameOutcome>::default();
        let number = state.next;
        state.next += 1;
        let block = Arc::new(block);
        let frame = QueuedFrame { number, token, block, deadline, outcome: outcome.clone(), transport: None };
        state.frames.push_back(frame);
        drop(state);
        self.wake.notify();
        Ok(outcome)
    }

    /// Removes the frames whose deadline has passed, and returns the largest of their numbers.
    pub(super) fn expire(&self) -> Option<u64> {
        let mut state = self.state();
        let now = Instant::now();
        let mut last = None;
        while let Some(at) = state.frames.iter().position(|frame| frame.deadline <= now) {
            let frame = state.frames.remove(at)?;
            let error = state.deadline_error(frame.token, frame.outcome.sent());
            frame.outcome.settle(Err(error));
            last = last.max(Some(frame.number));
        }
        if last.is_some() {
            self.left.notify_all();
        }
        last
    }

    /// Notes the transport of a frame that is about to be sent.
    pub(super) fn set_transport(&self, number: u64, transport: FrameTransport) {
        let mut state = self.state();
        if let Some(frame) = state.frames.iter_mut().find(|frame| frame.number == number) {
            frame.transport = Some(transport);
        }
    }

    /// Gives a frame its answer.
    ///
    /// # Errors
    /// [`InvalidRecord::Damaged`] if earlier frames have no answer yet.
    pub(super) fn answer(&self, answer: FrameAnswer) -> Result<(), InvalidRecord> {
        let mut state = self.state();
        let FrameAnswer { number, kind } = answer;
        if number <= state.answered || number >= state.next {
            return Err(InvalidRecord::Damaged("an answer is for no frame"));
        }
        if state.frames.front().is_some_and(|first| first.number < number) {
            return Err(InvalidRecord::Damaged("the answers are out of order"));
        }
        state.answered = number;
        state.acknowledged += u64::from(kind.is_ok());
        let peer = state.peer;
        // The caller has given a frame up that is not in the queue.
        if state.frames.front().is_some_and(|first| first.number == number)
            && let Some(frame) = state.frames.pop_front()
        {
            if let (Ok(_), Some(transport)) = (&kind, frame.transport) {
                state.counters.count(transport);
            }
            let refused = |refusal| MirrorError::Refused { frame: Box::new(frame.token), peer, refusal };
            frame.outcome.settle(kind.map_err(refused));
            self.left.notify_all();
        }
        Ok(())
    }

    /// Refuses the frames that are longer than `most` bytes.
    pub(super) fn refuse_longer(&self, most: u64) {
        let mut state = self.state();
        let peer = state.peer;
        state.frames.retain(|frame| {
            let length = frame.token.length;
            if length > most {
                frame.outcome.settle(Err(MirrorError::TooLong { length, most, peer }));
            }
            length <= most
        });
        self.left.notify_all();
    }

    /// Ends all frames.
    pub(super) fn close(&self) {
        let mut state = self.state();
        state.is_closed = true;
        for frame in state.frames.drain(..) {
            frame.outcome.settle(Err(MirrorError::Closed));
        }
        self.left.notify_all();
        self.wake.notify();
    }
}

impl QueueState {
    /// Returns the error of a frame that is not acknowledged in time.
    pub(super) fn deadline_error(&self, frame: Token, sent: u64) -> MirrorError {
        let (peer, acknowledged, lost) = (self.peer, self.acknowledged, self.lost.clone());
        MirrorError::Deadline { frame: Box::new(frame), peer, sent, acknowledged, lost }
    }

    /// Returns the first frame with a number above `number`.
    pub(super) fn first_after(&self, number: u64) -> Option<&QueuedFrame> {
        self.frames.iter().find(|frame| frame.number > number)
    }

    /// Returns the first deadline.
    pub(super) fn first_deadline(&self) -> Option<Instant> {
        self.frames.iter().map(|frame| frame.deadline).min()
    }

    /// Returns the number of the last frame whose answer is not needed any more.
    pub(super) fn answered(&self) -> u64 {
        self.answered
    }

    /// Forgets how much of each frame a lost connection was given.
    pub(super) fn reset_sent(&mut self) {
        for frame in &self.frames {
            frame.outcome.set_sent(0);
        }
    }
}
