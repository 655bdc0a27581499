//! The loop of the station: one thread that blocks in `poll` only.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc;

use hostbuf::{Error, ErrorClass, Result};
use hostbuf_os::socket;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

use super::super::inherited::{adopt, lifeline};
use super::super::orders::StationHandle;
use super::super::spec::Spec;
use super::deadline::Deadline;
use super::local_job::LocalJob;
use super::state::{Speaker, Stage, Station};

/// The largest number of frames of one peer that are handled before those of the other peers.
const MAX_FRAMES: usize = 64;

/// The result of serving the host's processes.
#[derive(Debug)]
pub(crate) struct ServeOutcome {
    /// The agent's exit status.
    pub(crate) status: i32,
    /// True after a signal or the end of the job's daemon: the engine will not shut down in good
    /// order.
    pub(crate) called_off: bool,
    /// The process with which the agent ends.
    pub(crate) lifeline: Option<OwnedFd>,
}

impl Station {
    /// Opens the socket. The station ends with its parent, or with the process that the spec names.
    pub(crate) fn open(spec: &Spec) -> Result<(Station, StationHandle)> {
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
        let lifeline = lifeline(spec)?;
        let (order_sender, orders) = mpsc::channel();
        let (events, event_receiver) = mpsc::channel();
        let wake = EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)
            .map_err(|e| os("opening an event descriptor")(e.into()))?;
        let wake = Arc::new(wake);
        let deadline = Deadline::new(spec.timeout);
        let come = deadline.come.clone();
        let handle = StationHandle { orders: order_sender, wake: wake.clone(), events: event_receiver, come };
        let station = Station {
            listener,
            full: false,
            crowded: false,
            locked_out: None,
            lifeline,
            local: LocalJob::of(spec),
            deadline,
            terminate,
            peers: BTreeMap::new(),
            next: 0,
            stage: Stage::Gathering,
            result: None,
            failure: None,
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

    /// Serves until all peers have ended, or the job's daemon.
    pub(crate) fn serve(mut self) -> ServeOutcome {
        loop {
            match self.turn() {
                Ok(None) => {}
                Ok(Some((status, called_off))) => {
                    return ServeOutcome { status, called_off, lifeline: self.lifeline };
                }
                Err(error) => {
                    complain!("hostbuf-agent: {error}");
                    return ServeOutcome {
                        status: ErrorClass::Os.status().into(),
                        called_off: false,
                        lifeline: self.lifeline,
                    };
                }
            }
        }
    }

    /// Waits for events and handles them. At the end of the job it returns the exit status, and
    /// whether the job was called off.
    fn turn(&mut self) -> io::Result<Option<(i32, bool)>> {
        let woken = self.wait()?;
        self.full = false;
        if woken.ended {
            if let Some(job) = &self.local {
                job.end_orphans(self.peers.values().filter(|p| p.counted).map(|p| p.pid).collect());
            }
            let status = i32::from(!matches!(self.stage, Stage::Running));
            return Ok(Some((status, true)));
        }
        if woken.orders {
            let _ = self.wake.read();
            while let Ok(order) = self.orders.try_recv() {
                self.obey(order);
            }
        }
        if std::mem::take(&mut self.crowded) {
            self.flush_all();
        }
        for id in woken.departed {
            self.departed(id);
        }
        for id in woken.readable {
            self.read(id, MAX_FRAMES);
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
            // Ranks that have yet to connect must learn of the failure too. A launcher ends the
            // agent; without one, it ends after all ranks have been told, or with the engine's
            // daemon.
            Stage::Failed if !attached && self.print_failures && self.all_have_come() => Some(1),
            _ => None,
        };
        Ok(status.map(|status| (status, false)))
    }

    fn wait(&self) -> io::Result<Woken> {
        enum WakeSource {
            Listener,
            Wake,
            End,
            Channel(u64),
            Process(u64),
        }
        let mut sources = vec![WakeSource::Listener, WakeSource::Wake, WakeSource::End];
        let listening = if self.full { PollFlags::empty() } else { PollFlags::POLLIN };
        let mut fds = vec![
            PollFd::new(self.listener.as_fd(), listening),
            PollFd::new(self.wake.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.terminate.as_fd(), PollFlags::POLLIN),
        ];
        if let Some(lifeline) = &self.lifeline {
            sources.push(WakeSource::End);
            fds.push(PollFd::new(lifeline.as_fd(), PollFlags::POLLIN));
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
        // Other processes may use up the descriptors of the host, and close them soon.
        let patience = match (self.crowded, self.full) {
            (true, _) => PollTimeout::from(10u8),
            (false, true) => PollTimeout::from(100u8),
            (false, false) => self.until_late(),
        };
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
                WakeSource::Listener => woken.newcomers = true,
                WakeSource::Wake => woken.orders = true,
                WakeSource::End => woken.ended = true,
                WakeSource::Process(id) => woken.departed.push(id),
                WakeSource::Channel(id) => {
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
}

/// The events that ended a wait.
#[derive(Default)]
struct Woken {
    newcomers: bool,
    orders: bool,
    ended: bool,
    departed: Vec<u64>,
    readable: Vec<u64>,
    writable: Vec<u64>,
}
