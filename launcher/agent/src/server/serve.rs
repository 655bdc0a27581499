//! The loop of the server: one thread that blocks in `poll` only.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use hostbuf::{Error, ErrorClass, JobError, Result};
use hostbuf_os::session::Acceptor;
use hostbuf_os::socket;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

use super::super::buffer_request;
use super::super::first_failure::FirstFailure;
use super::super::inherited::{adopt, watched_process};
use super::super::orders::{Order, ServerHandle};
use super::super::spec::Spec;
use super::deadline::Deadline;
use super::gather_parts::Gathers;
use super::gpu_descriptors::GpuDescriptors;
use super::local_job::LocalJob;
use super::member_ranks::Members;
use super::state::{PrintingRank, Server, Stage};

/// The largest number of frames of one peer that are handled before those of the other peers.
pub(super) const MAX_FRAMES: usize = 64;

/// The interval at which packets with descriptors are tried again while too many are on their way.
const CROWDED_RETRY_INTERVAL: Duration = Duration::from_millis(10);

/// The time for which an agent without a launcher waits for the first rank, from its start or from
/// the failure of the job on. The rank that has started the agent connects at once, unless it was
/// killed. After a failure it would otherwise start the next agent, and no rank would print why the
/// job has failed.
const FIRST_RANK_TIMEOUT: Duration = Duration::from_secs(10);

/// The result of serving the host's processes.
#[derive(Debug)]
pub(crate) struct ServeOutcome {
    /// The agent's exit status.
    pub(crate) status: i32,
    /// True after a signal or the end of the job's daemon: the engine will not shut down in good
    /// order.
    pub(crate) was_cancelled: bool,
    /// The process with which the agent ends.
    pub(crate) watched_process: Option<OwnedFd>,
}

impl Server {
    /// Opens the socket. The server ends with its parent, or with the process that the spec names.
    pub(crate) fn open(spec: &Spec) -> Result<(Server, ServerHandle)> {
        let os = |doing: &str| {
            let doing = doing.to_owned();
            move |source: io::Error| Error::Os { doing, source }
        };
        let signals: SigSet = [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP].into_iter().collect();
        signals.thread_block().map_err(|e| os("blocking signals")(e.into()))?;
        let flags = SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC;
        let terminate =
            SignalFd::with_flags(&signals, flags).map_err(|e| os("opening a signal descriptor")(e.into()))?;
        let listener = match spec.listener {
            Some(fd) => adopt(fd)?,
            None => socket::listen_on(&spec.socket)
                .map_err(os(&format!("listening on the socket @{}", spec.socket)))?,
        };
        let watched_process = watched_process(spec)?;
        let (order_sender, orders) = mpsc::channel();
        let (events, event_receiver) = mpsc::channel();
        let wake = EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)
            .map_err(|e| os("opening an event descriptor")(e.into()))?;
        let wake = Arc::new(wake);
        let deadline = Deadline::new(spec.timeout, spec.isolated);
        let connected = deadline.connected.clone();
        let handles_losses = Arc::new(AtomicBool::new(false));
        let handle = ServerHandle {
            orders: order_sender,
            wake: wake.clone(),
            events: event_receiver,
            connected,
            handles_losses: handles_losses.clone(),
        };
        let server = Server {
            acceptor: Acceptor::new(listener),
            reported_shortage: false,
            crowded: false,
            watched_process,
            local: LocalJob::of(spec),
            deadline,
            terminate,
            peers: BTreeMap::new(),
            next: 0,
            stage: Stage::Gathering,
            result: None,
            gpu: GpuDescriptors::default(),
            failure: FirstFailure::default(),
            started_at: Instant::now(),
            failed_at: None,
            members: Members::default(),
            gathers: Gathers::new(),
            print_failures: !spec.reports,
            ends_alone: spec.isolated.is_some() || spec.hidden_engine,
            printing_rank: PrintingRank::None,
            request: 0,
            own_request: (buffer_request::number(&spec.buffers), buffer_request::text(&spec.buffers)),
            seen: (BTreeSet::new(), 0),
            orders,
            wake,
            events,
            coordinator_handles_losses: handles_losses,
            has_lost_rank: false,
        };
        Ok((server, handle))
    }

    /// Serves until all peers have ended, or the job's daemon.
    pub(crate) fn serve(mut self) -> ServeOutcome {
        loop {
            match self.turn() {
                Ok(None) => {}
                Ok(Some((status, was_cancelled))) => {
                    return ServeOutcome { status, was_cancelled, watched_process: self.watched_process };
                }
                Err(error) => {
                    complain!("hostbuf-agent: {error}");
                    return ServeOutcome {
                        status: ErrorClass::Os.status().into(),
                        was_cancelled: false,
                        watched_process: self.watched_process,
                    };
                }
            }
        }
    }

    /// Tells the ranks why the job has failed before anything else of it could start.
    pub(crate) fn serve_failure(mut self, error: JobError) {
        self.handle_order(Order::Fail(error));
        self.serve();
    }

    /// Waits for events and handles them. At the end of the job it returns the exit status, and
    /// whether the job was called off.
    fn turn(&mut self) -> io::Result<Option<(i32, bool)>> {
        let events = self.wait()?;
        if events.ended {
            if let Some(job) = &self.local {
                job.end_orphans(self.peers.values().filter(|p| p.counted).map(|p| p.pid).collect());
            }
            let status = i32::from(!matches!(self.stage, Stage::Running));
            return Ok(Some((status, true)));
        }
        if events.orders {
            let _ = self.wake.read();
            while let Ok(order) = self.orders.try_recv() {
                self.handle_order(order);
            }
        }
        if std::mem::take(&mut self.crowded) {
            self.flush_all();
        }
        if !events.ended_processes.is_empty() {
            // The last connections of an ended process come before its end.
            self.accept();
        }
        for id in events.ended_processes {
            self.process_ended(id);
        }
        for id in events.readable {
            self.read(id, MAX_FRAMES);
        }
        for id in events.writable {
            self.flush(id);
        }
        if events.new_connections || self.acceptor.retry_after().is_some() {
            self.accept();
        }
        self.check_late();
        if self.status().is_some() {
            // A client may have connected meanwhile, and its hello may be on its way.
            self.accept();
        }
        let status = self.status().filter(|_| self.acceptor.expects_within().is_none());
        Ok(status.map(|status| (status, false)))
    }

    /// Returns the exit status if the agent has no more clients.
    fn status(&self) -> Option<i32> {
        match self.stage {
            _ if !self.peers.is_empty() => None,
            Stage::Running => Some(0),
            // Ranks that have yet to connect must learn of the failure too. A launcher ends the
            // agent; without one, it ends after all ranks have been told, or with the engine's
            // daemon.
            Stage::Failed if self.print_failures && (self.all_have_connected() || self.ends_alone) => {
                self.first_rank_time_left().is_none().then_some(1)
            }
            // The rank that has started this agent was ended before it could connect.
            Stage::Gathering if self.print_failures && self.seen.0.is_empty() => {
                self.first_rank_time_left().is_none().then_some(1)
            }
            _ => None,
        }
    }

    /// Returns the time for which an agent without a launcher still waits for the first rank, since
    /// its start or the failure of the job, or `None` if it does not wait.
    fn first_rank_time_left(&self) -> Option<Duration> {
        if !self.seen.0.is_empty() || !self.print_failures {
            return None;
        }
        let since = self.failed_at.unwrap_or(self.started_at);
        FIRST_RANK_TIMEOUT.checked_sub(since.elapsed()).filter(|left| !left.is_zero())
    }

    fn wait(&self) -> io::Result<WakeEvents> {
        enum WakeSource {
            NewConnection,
            Wake,
            End,
            Channel(u64),
            Process(u64),
        }
        let mut sources = vec![WakeSource::Wake, WakeSource::End];
        let mut fds = vec![
            PollFd::new(self.wake.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.terminate.as_fd(), PollFlags::POLLIN),
        ];
        for fd in self.acceptor.descriptors() {
            sources.push(WakeSource::NewConnection);
            fds.push(PollFd::new(fd, PollFlags::POLLIN));
        }
        if let Some(watched_process) = &self.watched_process {
            sources.push(WakeSource::End);
            fds.push(PollFd::new(watched_process.as_fd(), PollFlags::POLLIN));
        }
        for (&id, peer) in &self.peers {
            if let Some(channel) = &peer.channel {
                // A peer that does not read its answers is not read either.
                let mut flags = PollFlags::empty();
                flags.set(PollFlags::POLLIN, peer.outbox.len() < MAX_FRAMES);
                flags.set(PollFlags::POLLOUT, !peer.outbox.is_empty() && !self.crowded);
                sources.push(WakeSource::Channel(id));
                fds.push(PollFd::new(channel.as_fd(), flags));
            }
            if let Some(process) = &peer.process {
                sources.push(WakeSource::Process(id));
                fds.push(PollFd::new(process.as_fd(), PollFlags::POLLIN));
            }
        }
        match poll(&mut fds, self.poll_timeout()) {
            Ok(_) | Err(nix::Error::EINTR) => {}
            Err(e) => return Err(e.into()),
        }
        let mut events = WakeEvents::default();
        for (source, fd) in sources.iter().zip(&fds) {
            let seen = fd.revents().unwrap_or(PollFlags::empty());
            if seen.is_empty() {
                continue;
            }
            match *source {
                WakeSource::NewConnection => events.new_connections = true,
                WakeSource::Wake => events.orders = true,
                WakeSource::End => events.ended = true,
                WakeSource::Process(id) => events.ended_processes.push(id),
                WakeSource::Channel(id) => {
                    if seen.contains(PollFlags::POLLOUT) {
                        events.writable.push(id);
                    }
                    if seen.intersects(PollFlags::POLLIN | PollFlags::POLLHUP | PollFlags::POLLERR) {
                        events.readable.push(id);
                    }
                }
            }
        }
        Ok(events)
    }

    /// Returns the time limit of the wait for events.
    fn poll_timeout(&self) -> PollTimeout {
        let crowded = self.crowded.then_some(CROWDED_RETRY_INTERVAL);
        let expected = self.acceptor.expects_within().filter(|_| self.peers.is_empty());
        let limits =
            [crowded, self.acceptor.retry_after(), expected, self.until_late(), self.first_rank_time_left()];
        // Rounded up: the server would wake shortly before the time otherwise.
        let least = limits.into_iter().flatten().min().map(|time| time + Duration::from_millis(1));
        least.map_or(PollTimeout::NONE, |time| PollTimeout::try_from(time).unwrap_or(PollTimeout::MAX))
    }
}

/// The events that ended a wait.
#[derive(Default)]
struct WakeEvents {
    new_connections: bool,
    orders: bool,
    ended: bool,
    ended_processes: Vec<u64>,
    readable: Vec<u64>,
    writable: Vec<u64>,
}
