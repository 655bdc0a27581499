//! The messages between the agent's two threads.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::mpsc::{Receiver, Sender};

use hostbuf::JobError;
use hostbuf::segment::Layout;
use hostbuf_protocol::candidates::Ballot;
use hostbuf_protocol::message::Message;
use nix::sys::eventfd::EventFd;

use super::rank_refusal::RankRefusal;
use super::timed_error::TimedError;

/// A request of the coordinator.
pub(super) enum Order {
    /// Send this question to all ranks of this host.
    Ask(Question),
    /// Send the memory to the ranks now, and to other processes when they connect.
    Serve(Box<Layout>, Arc<Vec<OwnedFd>>),
    /// Tell all ranks the address of the GPU sections, and let those that use GPUs create and map
    /// the memory.
    MapGpu {
        /// The address of the range.
        address: u64,
        /// The number of pieces.
        pieces: usize,
    },
    /// Let all ranks run.
    Go,
    /// End the job with this error, which every rank gets.
    Fail(JobError),
}

/// A question to all ranks.
#[derive(Clone, Copy, Debug)]
pub(super) enum Question {
    /// The vote on candidate addresses for a range of this many bytes.
    Ballot(Ballot, usize),
    /// The lowest hole.
    Search {
        /// The length of the hole in bytes.
        length: usize,
        /// The address at which the search begins.
        from: usize,
        /// The alignment of the hole in bytes.
        align: usize,
    },
}

impl Question {
    /// Returns the message to the ranks.
    pub(super) fn message(&self) -> Message<'static> {
        match *self {
            Question::Ballot(candidates, length) => Message::Ballot { length: length as u64, candidates },
            Question::Search { length, from, align } => {
                Message::Search { length: length as u64, from: from as u64, align: align as u64 }
            }
        }
    }
}

/// An event that the server reports.
pub(super) enum Event {
    /// All ranks of this host are connected and ready: their number, the number of ranks in the
    /// job, and the ranks without a buffer.
    Present { ranks: usize, size: u64, uncovered: Uncovered },
    /// All ranks of this host have answered.
    Answered(Answer),
    /// All ranks of this host have mapped the buffers.
    Mapped,
    /// All ranks of this host that use GPUs have mapped the GPU sections.
    GpuMapped,
    /// All ranks of this host have been told to run.
    Released,
    /// A rank is lost, or cannot continue.
    Lost(TimedError),
}

/// The combined answer of all ranks of a host.
#[derive(Clone, Debug)]
pub(super) struct Answer {
    /// The candidates that all ranks hold, as bits.
    pub(super) mask: u64,
    /// The highest of the holes that the ranks have found.
    pub(super) hole: u64,
    /// The refusal of the lowest rank that can hold no address, or else of the lowest rank that has
    /// refused a candidate.
    pub(super) refusal: Option<RankRefusal>,
}

/// The ranks that do not have the buffer before `main`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Uncovered {
    /// The number of ranks that never have the buffer.
    pub(super) without: u64,
    /// The number of ranks that can attach.
    pub(super) attaching: u64,
    /// The line about this host's ranks that never have the buffer, if there are any.
    pub(super) notice: Option<String>,
}

/// The coordinator's connection to the server.
pub(super) struct ServerHandle {
    pub(super) orders: Sender<Order>,
    pub(super) wake: Arc<EventFd>,
    pub(super) events: Receiver<Event>,
    /// The number of this host's ranks that have connected.
    pub(super) connected: Arc<AtomicU64>,
    /// True once the coordinator handles the loss of a rank. Before, it may allocate memory or load
    /// files for minutes.
    pub(super) handles_losses: Arc<AtomicBool>,
}

impl ServerHandle {
    pub(super) fn order(&self, order: Order) {
        // The process ends with the server, so there is nothing to do without one.
        let _ = self.orders.send(order);
        let _ = self.wake.write(1);
    }
}
