//! The state that a receiver keeps for a sender.

use std::collections::VecDeque;
use std::net::TcpStream;
use std::time::Instant;

use crate::wire::{FrameAnswer, MAX_WINDOW};

/// The state that a receiver keeps for a sender, through all connections of the sender.
#[derive(Debug)]
pub(super) struct MirrorSession {
    /// The number of the connection that serves the session. An earlier one publishes nothing.
    pub(super) connection: u64,
    /// The socket of that connection.
    pub(super) stream: Option<TcpStream>,
    /// The number of the last frame that was answered.
    pub(super) settled: u64,
    /// The last answers, in order.
    answers: VecDeque<FrameAnswer>,
    pub(super) last_used: Instant,
}

impl MirrorSession {
    /// Makes a session whose sender needs no answers up to that of frame `answered`.
    pub(super) fn new(answered: u64) -> MirrorSession {
        MirrorSession {
            connection: 0,
            stream: None,
            settled: answered,
            answers: VecDeque::new(),
            last_used: Instant::now(),
        }
    }

    /// Returns the answers to frames after `answered`, and forgets the others.
    pub(super) fn answers_after(&mut self, answered: u64) -> Vec<FrameAnswer> {
        self.answers.retain(|answer| answer.number > answered);
        self.settled = self.settled.max(answered);
        self.answers.iter().cloned().collect()
    }

    /// Notes the answer to a frame.
    pub(super) fn note(&mut self, answer: FrameAnswer) {
        self.settled = answer.number;
        self.last_used = Instant::now();
        if self.answers.len() == MAX_WINDOW as usize {
            self.answers.pop_front();
        }
        self.answers.push_back(answer);
    }
}
