//! The side of the agent that talks to the processes of its host. One thread, no blocking call but `poll`.

mod coverage;
mod deadline;
mod ending;
mod failure;
mod gathers;
mod newcomers;
mod votes;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::Instant;

use hostbuf::internal::wire::{Coverage, Frame, Hello, Kind, Role, Territory, Winner};
use hostbuf::internal::{Channel, Message};
use hostbuf::os::{process, socket};
use hostbuf::{Error, Result};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};

use super::inherited::{adopt, lifeline};
use super::orders::{Event, Handle, Order};
use super::report::Report;
use super::spec::Spec;
use deadline::Deadline;
use ending::LocalJob;
use failure::Speaker;
use gathers::Parts;

/// How many frames may wait for a peer that does not read.
const MAX_BACKLOG: usize = 1 << 13;
/// How many frames of one peer are heard in a turn: then it is the others' turn.
const MAX_HEARD: usize = 64;

struct Peer {
    channel: Option<Channel>,
    process: Option<OwnedFd>,
    pid: i32,
    since: Instant,
    hello: Option<Hello>,
    /// The command line of a rank, as far as a frame holds it.
    command: String,
    /// The way in which a rank's program gets the buffer, and, if it does not get it before `main`, the reason.
    coverage: (Coverage, String),
    ready: Option<Territory>,
    /// What it said last in answer to what was asked.
    answer: Option<Frame>,
    mapped: bool,
    outbox: VecDeque<(Frame, bool)>,
    served: bool,
    refused: bool,
    /// A rank that came while the ranks were gathering: the job waits for it.
    counted: bool,
}

/// How far the job is, as the ranks see it.
enum Stage {
    Gathering,
    /// A question is out.
    Asking(Kind),
    /// Between questions.
    Waiting,
    Mapping,
    Running,
    Failed,
}

/// How serving ended.
#[derive(Debug)]
pub(super) struct End {
    /// The agent's exit status.
    pub(super) status: i32,
    /// A signal, or the end of the job's daemon: the engine will not shut down in good order.
    pub(super) called_off: bool,
    /// The process with which the agent ends.
    pub(super) lifeline: Option<OwnedFd>,
}

pub(super) struct Station {
    listener: OwnedFd,
    /// Out of descriptors: newcomers wait until somebody has left, or a moment has passed.
    full: bool,
    /// Since when no rank that is wanted could be let in for that reason.
    locked_out: Option<Instant>,
    lifeline: Option<OwnedFd>,
    local: Option<LocalJob>,
    deadline: Deadline,
    terminate: nix::sys::signalfd::SignalFd,
    peers: BTreeMap<u64, Peer>,
    next: u64,
    stage: Stage,
    result: Option<(Winner, Arc<Vec<OwnedFd>>)>,
    failure: String,
    /// The bytes that the last question was about.
    asked: usize,
    /// The parts that have come and who brought them, by size of the group and sequence, then by local rank.
    gathers: BTreeMap<(u64, u64), Parts>,
    print_failures: bool,
    speaker: Speaker,
    /// What the counted ranks ask for.
    request: u64,
    /// The local ranks that have ever come, and how many the host has.
    seen: (BTreeSet<u64>, u64),
    orders: Receiver<Order>,
    wake: Arc<EventFd>,
    events: Sender<Event>,
}

impl Station {
    /// Listens. Begins to end with its parent, or with the process that the spec names.
    pub(super) fn open(spec: &Spec) -> Result<(Station, Handle)> {
        let os = |doing: &str| {
            let doing = doing.to_owned();
            move |source: io::Error| Error::Os { doing, source }
        };
        let signals: nix::sys::signal::SigSet = [
            nix::sys::signal::Signal::SIGTERM,
            nix::sys::signal::Signal::SIGINT,
            nix::sys::signal::Signal::SIGHUP,
        ]
        .into_iter()
        .collect();
        signals.thread_block().map_err(|e| os("blocking signals")(e.into()))?;
        let flags = nix::sys::signalfd::SfdFlags::SFD_NONBLOCK | nix::sys::signalfd::SfdFlags::SFD_CLOEXEC;
        let terminate = nix::sys::signalfd::SignalFd::with_flags(&signals, flags)
            .map_err(|e| os("opening a signal descriptor")(e.into()))?;
        let listener = match spec.listener {
            Some(fd) => adopt(fd)?,
            None => socket::listen_on(&spec.socket)
                .map_err(os(&format!("listening on the socket @{}", spec.socket)))?,
        };
        let lifeline = lifeline(spec)?;
        let (order_sender, orders) = mpsc::channel();
        let (events, event_receiver) = mpsc::channel();
        let wake = EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)
            .map_err(|e| os("opening an event descriptor")(e.into()))?;
        let wake = Arc::new(wake);
        let deadline = Deadline::new(spec.timeout);
        let come = deadline.come.clone();
        let handle = Handle { orders: order_sender, wake: wake.clone(), events: event_receiver, come };
        let station = Station {
            listener,
            full: false,
            locked_out: None,
            lifeline,
            local: LocalJob::of(spec),
            deadline,
            terminate,
            peers: BTreeMap::new(),
            next: 0,
            stage: Stage::Gathering,
            result: None,
            failure: String::new(),
            asked: 0,
            gathers: BTreeMap::new(),
            print_failures: !spec.reports,
            speaker: Speaker::None,
            request: 0,
            seen: (BTreeSet::new(), 0),
            orders,
            wake,
            events,
        };
        Ok((station, handle))
    }

    /// Serves until all have left, or the job's daemon has gone.
    pub(super) fn serve(mut self) -> End {
        loop {
            match self.turn() {
                Ok(None) => {}
                Ok(Some((status, called_off))) => return End { status, called_off, lifeline: self.lifeline },
                Err(error) => {
                    complain!("hostbuf-agent: {error}");
                    return End { status: 1, called_off: false, lifeline: self.lifeline };
                }
            }
        }
    }

    /// One turn: wait, then look at everything that woke us. At the end the exit status, and whether it was called off.
    fn turn(&mut self) -> io::Result<Option<(i32, bool)>> {
        let woken = self.wait()?;
        self.full = false;
        if woken.ended {
            self.end_orphans();
            let status = i32::from(!matches!(self.stage, Stage::Running));
            return Ok(Some((status, true)));
        }
        if woken.orders {
            let _ = self.wake.read();
            while let Ok(order) = self.orders.try_recv() {
                self.obey(order);
            }
        }
        for id in woken.departed {
            self.departed(id);
        }
        for id in woken.readable {
            self.read(id, MAX_HEARD);
        }
        for id in woken.writable {
            self.flush(id);
        }
        if woken.newcomers {
            self.accept();
        }
        self.look_if_late();
        let attached = self.peers.values().any(|p| p.hello.is_some());
        let status = match self.stage {
            Stage::Running if !attached => Some(0),
            // Ranks may still be on their way, and shall hear it from here. A launcher ends this; without one it ends
            // when all have heard, or with the engine's daemon.
            Stage::Failed if !attached && self.print_failures && self.all_have_come() => Some(1),
            _ => None,
        };
        Ok(status.map(|status| (status, false)))
    }

    /// Returns whether a launcher reads this agent's reports.
    fn reports(&self) -> bool {
        !self.print_failures
    }

    fn all_have_come(&self) -> bool {
        self.seen.0.len() as u64 >= self.seen.1
    }

    fn wait(&self) -> io::Result<Woken> {
        enum Source {
            Listener,
            Wake,
            End,
            Channel(u64),
            Process(u64),
        }
        let mut sources = vec![Source::Listener, Source::Wake, Source::End];
        let listening = if self.full { PollFlags::empty() } else { PollFlags::POLLIN };
        let mut fds = vec![
            PollFd::new(self.listener.as_fd(), listening),
            PollFd::new(self.wake.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.terminate.as_fd(), PollFlags::POLLIN),
        ];
        if let Some(lifeline) = &self.lifeline {
            sources.push(Source::End);
            fds.push(PollFd::new(lifeline.as_fd(), PollFlags::POLLIN));
        }
        for (&id, peer) in &self.peers {
            if let Some(channel) = &peer.channel {
                // Who does not read what it asked for is not heard either.
                let mut flags = PollFlags::empty();
                flags.set(PollFlags::POLLIN, peer.outbox.len() < MAX_HEARD);
                flags.set(PollFlags::POLLOUT, !peer.outbox.is_empty());
                sources.push(Source::Channel(id));
                fds.push(PollFd::new(channel.as_fd(), flags));
            }
            if let Some(process) = &peer.process {
                sources.push(Source::Process(id));
                fds.push(PollFd::new(process.as_fd(), PollFlags::POLLIN));
            }
        }
        // Out of descriptors for other reasons than our own peers, perhaps: then it may pass by itself.
        let patience = if self.full { PollTimeout::from(100u16) } else { self.until_late() };
        match poll(&mut fds, patience) {
            Ok(_) | Err(nix::Error::EINTR) => {}
            Err(e) => return Err(e.into()),
        }
        let mut woken = Woken::default();
        for (source, fd) in sources.iter().zip(&fds) {
            let seen = fd.revents().unwrap_or(PollFlags::empty());
            if seen.is_empty() {
                continue;
            }
            match *source {
                Source::Listener => woken.newcomers = true,
                Source::Wake => woken.orders = true,
                Source::End => woken.ended = true,
                Source::Process(id) => woken.departed.push(id),
                Source::Channel(id) => {
                    if seen.contains(PollFlags::POLLOUT) {
                        woken.writable.push(id);
                    }
                    if seen.intersects(PollFlags::POLLIN | PollFlags::POLLHUP | PollFlags::POLLERR) {
                        woken.readable.push(id);
                    }
                }
            }
        }
        Ok(woken)
    }

    /// Hears at most `most` frames of a peer.
    fn read(&mut self, id: u64, most: usize) {
        for _ in 0..most {
            let Some(channel) = self.peers.get(&id).and_then(|p| p.channel.as_ref()) else { return };
            match channel.receive() {
                Ok(Message::Frame(frame, _)) => self.hear(id, &frame),
                Ok(Message::Nothing) => return,
                Ok(Message::Nonsense) => {
                    tracing::warn!(pid = self.peers[&id].pid, "a peer sent what is no frame");
                    return self.hung_up(id);
                }
                Ok(Message::End) | Err(_) => return self.hung_up(id),
            }
        }
    }

    fn hear(&mut self, id: u64, frame: &Frame) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        match (frame.kind(), peer.hello) {
            (Some(Kind::Hello), None) => match Hello::parse(frame) {
                Some(hello) => {
                    peer.command = String::from_utf8_lossy(frame.text()).into_owned();
                    self.greet(id, hello);
                }
                None => self.hung_up(id),
            },
            (Some(Kind::Ready), Some(Hello { role: Role::Rank, .. })) => {
                let sanitized = frame.words[0] == Territory::Sanitized as u64;
                self.deadline.progress();
                peer.ready = Some(if sanitized { Territory::Sanitized } else { Territory::Anywhere });
                let why = String::from_utf8_lossy(frame.text()).into_owned();
                peer.coverage = (Coverage::from_word(frame.words[1]), why);
                self.look_if_present();
            }
            (Some(kind @ (Kind::Votes | Kind::Hole)), Some(Hello { role: Role::Rank, .. })) => {
                let asked = matches!(self.stage, Stage::Asking(k) if k == kind);
                if asked {
                    self.deadline.progress();
                    peer.answer = Some(frame.clone());
                    self.look_if_answered();
                }
            }
            (Some(Kind::Mapped), Some(hello)) => {
                peer.mapped = true;
                self.deadline.progress();
                if hello.role == Role::Rank {
                    self.look_if_mapped();
                }
            }
            (Some(Kind::Failed), Some(hello)) => {
                let why = String::from_utf8_lossy(frame.text()).into_owned();
                if hello.role == Role::Rank && peer.counted {
                    if let (true, Ok(status @ (126 | 127))) = (self.reports(), u8::try_from(frame.words[0])) {
                        Report::Unstarted { status }.print();
                    }
                    self.lost(id, why);
                }
            }
            (Some(Kind::Gather), Some(hello)) if hello.role == Role::Member => self.gather(id, hello, frame),
            _ => {
                tracing::warn!(pid = peer.pid, kind = ?frame.kind(), "a peer said what makes no sense now");
                self.hung_up(id);
            }
        }
    }

    fn greet(&mut self, id: u64, hello: Hello) {
        let differs = |h: &Hello| {
            h.local_rank == hello.local_rank || h.local_size != hello.local_size || h.request != hello.request
        };
        let other = self.ranks().find(|(_, h)| differs(h));
        let other = other.map(|(_, h)| h);
        let Some(peer) = self.peers.get_mut(&id) else { return };
        peer.hello = Some(hello);
        if hello.role == Role::Rank {
            self.seen.0.insert(hello.local_rank);
            self.seen.1 = hello.local_size;
        }
        // Whoever takes part is watched by its process, which a closed connection does not end.
        peer.process = process::pidfd(peer.pid).ok();
        if matches!(self.stage, Stage::Failed) {
            return self.refuse();
        }
        match hello.role {
            Role::Rank if matches!(self.stage, Stage::Gathering) => {
                peer.counted = true;
                self.deadline.rank_has_come();
                self.request = hello.request;
                if let Some(other) = other.filter(|o| o.request != hello.request) {
                    let why = format!("it asks for other buffers than rank {} of the same job", other.rank);
                    self.lost(id, why);
                } else if let Some(other) = other {
                    let why = format!(
                        "it says that it is local rank {} of {}, and another said {} of {}: are these two jobs under one name?",
                        hello.local_rank, hello.local_size, other.local_rank, other.local_size
                    );
                    self.lost(id, why);
                }
            }
            Role::Rank if hello.request != self.request => {
                let why = "this job has its buffers already, and this rank asks for others: one `hostbuf exec` after \
                           another in one job must ask for the same";
                self.send(id, Frame::new(Kind::Fail).with(&[1, 1]).saying(why.as_bytes()), false);
            }
            // Somebody that the engine started later (MPI_Comm_spawn): it attaches, and is not counted.
            Role::Rank | Role::Late | Role::Library => {
                self.supply(id);
            }
            Role::Member => self.join(id, hello),
        }
    }

    /// The ranks that the job waits for.
    fn ranks(&self) -> impl Iterator<Item = (&u64, Hello)> {
        self.peers.iter().filter(|(_, p)| p.counted).filter_map(|(id, p)| Some((id, p.hello?)))
    }

    /// The connection has ended; the process may well live on without it.
    fn hung_up(&mut self, id: u64) {
        let running = matches!(self.stage, Stage::Running | Stage::Failed);
        let Some(peer) = self.peers.get_mut(&id) else { return };
        peer.channel = None;
        peer.outbox.clear();
        if peer.process.is_none() {
            self.heard_out(id);
        }
        let Some(peer) = self.peers.get(&id) else { return };
        let Some(hello) = peer.hello else {
            self.peers.remove(&id);
            return;
        };
        match hello.role {
            Role::Rank if !running && peer.counted => {
                self.lost(id, "it ended before it had the buffer".into());
            }
            Role::Member => self.member_left(id, hello),
            _ => {}
        }
        let Some(peer) = self.peers.get(&id) else { return };
        let mut others = self.peers.iter().filter(|(other, p)| **other != id && p.pid == peer.pid);
        // One descriptor is enough to see a process end, however often it has come.
        let watched = running && others.any(|(_, p)| p.process.is_some());
        if watched || peer.process.is_none() {
            self.peers.remove(&id);
        }
    }

    /// The process has ended.
    fn departed(&mut self, id: u64) {
        // What it said before it ended still counts.
        self.read(id, MAX_BACKLOG);
        self.hung_up(id);
        self.peers.remove(&id);
        self.heard_out(id);
        if matches!(self.stage, Stage::Asking(_)) {
            self.look_if_answered();
        }
    }

    fn lost(&mut self, id: u64, why: String) {
        let Some(peer) = self.peers.get(&id) else { return };
        let who = peer.hello.map_or(0, |h| h.rank);
        let message = format!("rank {who} on {} (process {}): {why}", process::host_name(), peer.pid);
        let _ = self.events.send(Event::Lost(message));
    }

    fn obey(&mut self, order: Order) {
        let ranks: Vec<u64> = self.ranks().map(|(&id, _)| id).collect();
        match order {
            Order::Ask(frame) => {
                let answer = if frame.kind() == Some(Kind::Search) { Kind::Hole } else { Kind::Votes };
                self.stage = Stage::Asking(answer);
                self.deadline.progress();
                self.asked = frame.words[0] as usize;
                for id in ranks {
                    if let Some(peer) = self.peers.get_mut(&id) {
                        peer.answer = None;
                    }
                    self.send(id, (*frame).clone(), false);
                }
            }
            Order::Serve(winner, descriptors) => {
                self.stage = Stage::Mapping;
                self.deadline.progress();
                self.result = Some((*winner, descriptors));
                for id in ranks {
                    self.supply(id);
                }
                self.look_if_mapped();
            }
            Order::Go => {
                self.stage = Stage::Running;
                let notice = self.notice();
                for id in ranks {
                    let text = notice.as_ref().filter(|(first, _)| *first == id).map_or("", |(_, text)| text);
                    self.send(id, Frame::new(Kind::Go).saying(text.as_bytes()), false);
                }
                let waiting: Vec<u64> =
                    self.peers.iter().filter(|(_, p)| !p.served).map(|(&id, _)| id).collect();
                for id in waiting {
                    self.supply(id);
                }
            }
            Order::Fail { message } => {
                self.stage = Stage::Failed;
                self.failure = message;
                self.refuse();
            }
        }
    }

    /// Gives the memory to a peer, when there is some: before all have mapped only to ranks, and to their processes once more
    /// when they register it.
    fn supply(&mut self, id: u64) {
        let running = matches!(self.stage, Stage::Running);
        let Some((winner, _)) = &self.result else { return };
        let frame = winner.frame().saying(self.report_of(id).as_bytes());
        let Some(pid) = self.peers.get(&id).map(|p| p.pid) else { return };
        let counted = self.peers.values().any(|p| p.counted && p.pid == pid);
        let Some(peer) = self.peers.get_mut(&id) else { return };
        let Some(hello) = peer.hello.filter(|h| h.role != Role::Member) else { return };
        if peer.served || (!running && !counted) {
            return;
        }
        peer.served = true;
        self.send(id, frame, true);
        if running && hello.role == Role::Rank {
            self.send(id, Frame::new(Kind::Go), false);
        }
    }

    fn send(&mut self, id: u64, frame: Frame, with_memory: bool) {
        if let Some(peer) = self.peers.get_mut(&id) {
            peer.outbox.push_back((frame, with_memory));
            if peer.outbox.len() > MAX_BACKLOG {
                return self.hung_up(id);
            }
        }
        self.flush(id);
    }

    fn flush(&mut self, id: u64) {
        let memory: Vec<RawFd> =
            self.result.iter().flat_map(|(_, fds)| fds.iter()).map(AsRawFd::as_raw_fd).collect();
        let Some(peer) = self.peers.get_mut(&id) else { return };
        let Some(channel) = &peer.channel else { return };
        while let Some((frame, with_memory)) = peer.outbox.front() {
            match channel.send(frame, if *with_memory { &memory } else { &[] }) {
                Ok(()) => drop(peer.outbox.pop_front()),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
                // Its end shows when it is read from.
                Err(_) => return peer.outbox.clear(),
            }
        }
    }
}

#[derive(Default)]
struct Woken {
    newcomers: bool,
    orders: bool,
    ended: bool,
    departed: Vec<u64>,
    readable: Vec<u64>,
    writable: Vec<u64>,
}
