//! The events of a job: signals, reports of the agents, and output of the engine.

use std::os::fd::AsFd;
use std::process::Child;
use std::time::Instant;

use hostbuf::{Error, ErrorClass, JobError, Result};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::super::descendants;
use super::super::lines::Lines;
use super::super::signals::ReceivedSignal;
use super::state::Launcher;
use super::stopped_agent::STOP_CHECK_INTERVAL;
use hostbuf_agent::log;
use hostbuf_agent::report::{Report, covered};

/// Prints lines of the engine, some of which separate their messages by NULs.
pub(super) fn print(lines: &[String]) {
    lines.iter().for_each(|line| hostbuf_agent::complain!("{}", line.trim_matches('\0')));
}

impl Launcher<'_> {
    /// Waits for events and handles them.
    pub(super) fn wait(&mut self) -> Result<()> {
        let ending = self.stopping.is_some()
            || self.failing.is_some()
            || self.over.is_some()
            || self.unreachable.is_some();
        let timeout = match (ending, self.watches_agents()) {
            (true, _) => PollTimeout::from(100u8),
            (false, true) => PollTimeout::try_from(STOP_CHECK_INTERVAL).unwrap_or(PollTimeout::NONE),
            (false, false) => PollTimeout::NONE,
        };
        let mut fds = vec![PollFd::new(self.signals.as_fd(), PollFlags::POLLIN)];
        fds.extend([&self.agent_lines, &self.agent_noise].into_iter().filter_map(Lines::poll_fd));
        match poll(&mut fds, timeout) {
            Ok(_) | Err(nix::Error::EINTR) => {}
            Err(e) => return Err(Error::Os { doing: "waiting".into(), source: e.into() }),
        }
        drop(fds);
        self.handle_signals();
        for line in self.agent_lines.read() {
            self.handle_line(&line);
        }
        let noise = self.agent_noise.read();
        if log::is_wanted() {
            print(&noise);
        }
        if noise.iter().any(|line| self.command.engine.reports_unreachable_host(line)) {
            self.unreachable.get_or_insert_with(Instant::now);
        }
        Ok(())
    }

    fn handle_signals(&mut self) {
        while let Some(ReceivedSignal { signal, by_terminal }) = self.signals.next() {
            self.forward(signal, by_terminal);
            match signal {
                Signal::SIGTSTP => {
                    self.signals.stop();
                    // This process was continued, and so must be the whole job.
                    self.forward(Signal::SIGCONT, by_terminal);
                }
                Signal::SIGINT | Signal::SIGTERM | Signal::SIGHUP => {
                    self.asked_to_end = Some(signal);
                    if !self.agreed {
                        // Ranks may run already, though their agents have not reported it yet.
                        self.ended_by = Some(signal);
                        if self.spawned.is_empty() {
                            self.failure.record(JobError::new(ErrorClass::Lost, "no rank has been started"));
                        }
                    }
                }
                _ => {}
            }
        }
    }

    /// Passes a signal on to the program's job, unless the terminal has done so.
    pub(super) fn forward(&self, signal: Signal, by_terminal: bool) {
        if by_terminal {
            return;
        }
        let handled_by_ranks = matches!(signal, Signal::SIGUSR1 | Signal::SIGUSR2);
        if self.command.engine.spawns_ranks() && !handled_by_ranks && !self.ranks.is_empty() {
            // mpirun signals the process group of a rank, so a shell that waits for the program
            // gets the signal too.
            return descendants::signal(&self.below(), signal);
        }
        for child in &self.ranks {
            let _ = kill(Pid::from_raw(child.id() as i32), signal);
        }
    }

    /// Returns the ranks that this launcher has started itself, and all their descendants.
    pub(super) fn below(&self) -> Vec<i32> {
        descendants::living(&self.outside())
    }

    /// Returns the children that are not ranks: the agents' job, and those from before the job.
    pub(super) fn outside(&self) -> Vec<u32> {
        self.agents.iter().map(Child::id).chain(self.foreign.iter().copied()).collect()
    }

    /// Handles a line of an agent.
    pub(super) fn handle_line(&mut self, line: &str) {
        match Report::parse(line) {
            Some(Report::Ready { host, agents }) => self.count_agent(&host, agents),
            Some(Report::Progress { host, done, total }) => self.progress.allocation(host, done, total),
            Some(Report::Loading { host, done, total }) => {
                self.progress.allocation_ended();
                self.progress.loading(host, done, total);
            }
            Some(Report::Loaded { host, message }) => {
                if self.verbosity.verbose {
                    hostbuf_agent::complain!("hostbuf: loaded on {host}: {message}");
                }
            }
            Some(Report::Filling { host, buffer, done, ended }) => {
                self.progress.filling(&buffer, host, done, ended);
            }
            Some(Report::Uncovered { message }) => {
                self.progress.start_ended();
                if !self.verbosity.quiet {
                    hostbuf_agent::complain!("hostbuf run: {message}");
                }
            }
            Some(Report::Agreed { address, rounds, microseconds, ranks, without, attaching }) => {
                self.agreed = true;
                self.progress.start_ended();
                if self.verbosity.verbose && address > 0 {
                    let who = covered(ranks, without, attaching);
                    hostbuf_agent::complain!(
                        "hostbuf: agreed on {address:#x} ({rounds} {}, {microseconds} µs since the agents started): {who}",
                        if rounds == 1 { "round" } else { "rounds" }
                    );
                }
            }
            Some(Report::Failed(error)) => {
                self.progress.end();
                // This launcher may have ended the rank that the agent misses, since another rank
                // was lost.
                let error = self.cause_of_loss(error);
                if self.failure.record(error) {
                    // The agents tell their ranks. A rank that ends by itself has a better exit
                    // status.
                    self.stop_soon();
                }
            }
            Some(_) | None => {
                if self.verbosity.verbose {
                    hostbuf_agent::complain!("hostbuf: an agent said: {line}");
                }
            }
        }
    }
}
