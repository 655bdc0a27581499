//! The state of the server.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender};
use std::time::Instant;

use hostbuf::segment::Layout;
use hostbuf::{ErrorClass, JobError};
use hostbuf_os::session::{AcceptedClient, Acceptor};
use hostbuf_os::{FrameSocket, process};
use hostbuf_protocol::message::{AddressWindow, Coverage, Hello};
use nix::sys::eventfd::EventFd;
use nix::sys::signalfd::SignalFd;

use super::super::first_failure::FirstFailure;
use super::super::orders::{Event, Order, Question};
use super::super::rank_refusal::RankRefusal;
use super::super::report::Report;
use super::attached::Attached;
use super::deadline::Deadline;
use super::gather_parts::{GatherKey, Gathers};
use super::gpu_descriptors::GpuDescriptors;
use super::local_job::LocalJob;
use super::member_ranks::Members;

/// A process that is or was connected.
pub(super) struct ClientProcess {
    pub(super) channel: Option<FrameSocket>,
    pub(super) process: Option<OwnedFd>,
    pub(super) pid: i32,
    pub(super) hello: Hello,
    /// The command line of a rank, as far as a frame holds it.
    pub(super) command: String,
    /// The way in which a rank's program gets the buffer, and, if it does not get it before `main`,
    /// the reason.
    pub(super) coverage: (Coverage, String),
    pub(super) ready: Option<AddressWindow>,
    /// Its answer to the last question.
    pub(super) answer: Option<RankAnswer>,
    /// Its last refusal of a candidate.
    pub(super) refusal: Option<RankRefusal>,
    pub(super) mapped: bool,
    /// True if it is a rank that maps the GPU sections.
    pub(super) uses_gpus: bool,
    pub(super) has_mapped_gpu: bool,
    /// The packets that wait until it reads, and the descriptors that belong to them.
    pub(super) outbox: VecDeque<(Vec<u8>, Attached)>,
    pub(super) served: bool,
    pub(super) refused: bool,
    /// True for a rank that connected while the ranks were gathering: the job waits for it.
    pub(super) counted: bool,
    /// The generation of a member, unless it was refused.
    pub(super) generation: Option<u64>,
    /// The unfinished operation to which a member has sent its part.
    pub(super) gathering: Option<GatherKey>,
}

impl ClientProcess {
    /// Makes a client that has said `hello`, with the command line of a rank.
    pub(super) fn new(client: AcceptedClient, hello: Hello, command: String) -> ClientProcess {
        ClientProcess {
            pid: client.connection.peer().pid,
            channel: Some(client.connection),
            process: client.process,
            hello,
            command,
            coverage: (Coverage::Preloaded, String::new()),
            ready: None,
            answer: None,
            refusal: None,
            mapped: false,
            uses_gpus: false,
            has_mapped_gpu: false,
            outbox: VecDeque::new(),
            served: false,
            refused: false,
            counted: false,
            generation: None,
            gathering: None,
        }
    }
}

/// The answer of one rank.
#[derive(Clone, Debug)]
pub(super) enum RankAnswer {
    /// The candidates that it holds, as bits, and the reason why it cannot hold another one.
    Votes(u64, Option<RankRefusal>),
    /// The hole that it has found.
    Hole(Option<u64>),
}

/// The stage of the job, as the ranks see it.
pub(super) enum Stage {
    /// The ranks connect.
    Gathering,
    /// The ranks have a question.
    Asking(Question),
    /// The ranks wait for the other hosts.
    Waiting,
    /// The ranks map the buffers.
    Mapping,
    /// The ranks that use GPUs map the GPU sections.
    MappingGpu,
    /// The ranks run.
    Running,
    /// The job cannot have its buffers.
    Failed,
}

/// The rank of the host that prints why the job has failed.
#[derive(PartialEq, Eq)]
pub(super) enum PrintingRank {
    /// No rank has been told to print.
    None,
    /// The peer with this number has been told to print, and has not ended yet.
    Rank(u64),
    /// The rank that was told to print has ended.
    Done,
}

/// The side of the agent that serves the processes of its host.
pub(crate) struct Server {
    pub(super) acceptor: Acceptor,
    /// True if the coordinator knows that ranks cannot be accepted.
    pub(super) reported_shortage: bool,
    /// True if too many descriptors of this user are on their way: packets with descriptors wait
    /// until their receivers have read others.
    pub(super) crowded: bool,
    pub(super) watched_process: Option<OwnedFd>,
    pub(super) local: Option<LocalJob>,
    pub(super) deadline: Deadline,
    pub(super) terminate: SignalFd,
    pub(super) peers: BTreeMap<u64, ClientProcess>,
    pub(super) next: u64,
    pub(super) stage: Stage,
    pub(super) result: Option<(Layout, Arc<Vec<OwnedFd>>)>,
    pub(super) gpu: GpuDescriptors,
    /// The error with which the job has failed.
    pub(super) failure: FirstFailure,
    /// The time of that failure.
    pub(super) failed_at: Option<Instant>,
    /// The time of the agent's start.
    pub(super) started_at: Instant,
    pub(super) members: Members,
    /// The unfinished collective operations of the members.
    pub(super) gathers: Gathers,
    pub(super) print_failures: bool,
    /// True if this agent ends after a failure without waiting for the missing ranks: they cannot
    /// reach it, or it is in a PID namespace whose first process waits for the agent.
    pub(super) ends_alone: bool,
    pub(super) printing_rank: PrintingRank,
    /// The request of the counted ranks.
    pub(super) request: u64,
    /// The buffers of this agent, as number and as text.
    pub(super) own_request: (u64, String),
    /// The local ranks that have ever connected, and the number of ranks on the host.
    pub(super) seen: (BTreeSet<u64>, u64),
    pub(super) orders: Receiver<Order>,
    pub(super) wake: Arc<EventFd>,
    pub(super) events: Sender<Event>,
    /// True once the coordinator handles the loss of a rank.
    pub(super) coordinator_handles_losses: Arc<AtomicBool>,
    /// True once a rank is lost: later losses are its consequences.
    pub(super) has_lost_rank: bool,
}

impl Server {
    /// Returns whether all ranks of the host have connected at some time.
    pub(super) fn all_have_connected(&self) -> bool {
        self.seen.0.len() as u64 >= self.seen.1
    }

    /// Returns the ranks that the job waits for.
    pub(super) fn ranks(&self) -> impl Iterator<Item = (&u64, Hello)> {
        self.peers.iter().filter(|(_, p)| p.counted).map(|(id, p)| (id, p.hello))
    }

    /// Reports the loss of a rank to the coordinator.
    pub(super) fn lost(&mut self, id: u64, why: String) {
        self.lost_with(id, JobError::new(ErrorClass::Lost, why));
    }

    /// Passes on to the coordinator the error because of which a rank cannot continue, with the
    /// place of the rank. The launcher learns of it at once, also while the coordinator allocates
    /// memory or loads files: it ends the job then, and the first loss is the cause of the others.
    pub(super) fn lost_with(&mut self, id: u64, mut error: JobError) {
        let Some(peer) = self.peers.get(&id) else { return };
        let (host, who) = (process::host_name(), peer.hello.rank);
        error.rank.get_or_insert(who as usize);
        let error = error.map_message(|why| format!("rank {who} on {host} (process {}): {why}", peer.pid));
        let error = error.with_host(host);
        let has_launcher = !self.print_failures;
        let is_first = !std::mem::replace(&mut self.has_lost_rank, true);
        if is_first && has_launcher && !self.coordinator_handles_losses.load(Ordering::Relaxed) {
            Report::Failed(error.clone()).print();
        }
        let _ = self.events.send(Event::Lost(error.into()));
    }
}
