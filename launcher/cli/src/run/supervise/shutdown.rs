//! The end of a job: collecting processes that have ended, and ending those that remain.

use std::process::Child;
use std::time::{Duration, Instant};

use hostbuf::{Error, ErrorClass, Result};
use hostbuf_os::process;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::super::descendants::{self, EndTimeouts};
use super::super::signals::ReceivedSignal;
use super::state::Launcher;

/// The time that a job gets to end after it was asked to, before it is killed.
const GRACE: Duration = Duration::from_secs(5);
/// The time that the ranks' remaining processes get after a successful job: the reader of a pipe
/// (`./app | tee log &`) may still have data to write.
const LINGER: Duration = Duration::from_secs(2);
/// The time that agents get to notice that all their ranks have ended.
const NOTICE_TIMEOUT: Duration = Duration::from_millis(500);

impl Launcher<'_> {
    /// Collects the processes that have ended.
    pub(super) fn reap(&mut self) -> Result<()> {
        let failed = |source| Error::Os { doing: "waiting for a child".into(), source };
        let local = self.command.engine.spawns_ranks();
        let mut left = Vec::new();
        let mut died = false;
        for mut child in std::mem::take(&mut self.ranks) {
            match child.try_wait().map_err(failed)? {
                None => left.push(child),
                Some(status) => {
                    died |= !status.success();
                    if !self.agreed {
                        let code = status.code().and_then(|code| u8::try_from(code).ok());
                        let class = code.and_then(ErrorClass::from_status);
                        self.class_of_rank =
                            class.filter(|class| class.is_of_program()).or(self.class_of_rank);
                    }
                    self.record_end(child.id(), status);
                }
            }
        }
        self.ranks = left;
        if local {
            let own = self.ranks.iter().chain(&self.agents).map(Child::id).collect::<Vec<_>>();
            descendants::reap(&own);
        }
        if local && died {
            // As an mpirun does: a rank that fails ends the job.
            if self.agreed || self.first.is_some() { self.stop() } else { self.stop_soon() }
        }
        if let Some(agents) = &mut self.agents
            && let Some(status) = agents.try_wait().map_err(failed)?
        {
            self.agents_status = Some(status);
            self.agents = None;
            for line in self.agent_lines.drain() {
                self.handle_line(&line);
            }
        }
        Ok(())
    }

    /// Returns the exit status of a job whose ranks have ended, or `None` while a reason for their
    /// end may follow, or has just been recorded as the failure.
    pub(super) fn conclude(&mut self) -> Option<u8> {
        // If all ranks have ended before they had the buffer, the agents report the reason now.
        if self.awaits_end_of_agents() {
            return None;
        }
        let late = self.over.get_or_insert_with(Instant::now).elapsed() > NOTICE_TIMEOUT;
        if late && !self.agreed {
            if let Some(error) = self.lost() {
                // No rank has connected to its agent.
                self.failure.record(error);
                return None;
            }
            if self.lacks_agent() {
                // An agent with much memory takes long to end, and states the reason only then.
                if !self.agents.as_ref().is_some_and(|agents| process::is_ending(agents.id() as i32)) {
                    let error = self.no_agents();
                    self.failure.record(error);
                }
                return None;
            }
        }
        if !late && !self.agreed && self.agents.is_some() {
            return None;
        }
        self.report_ended_rank();
        self.report_engine_failure();
        Some(self.exit_status())
    }

    /// Asks the program's job to end if it does not do so by itself.
    pub(super) fn stop_soon(&mut self) {
        self.failing.get_or_insert_with(Instant::now);
    }

    /// Asks the program's job to end.
    pub(super) fn stop(&mut self) {
        if self.stopping.is_none() {
            self.stopping = Some((Instant::now(), false));
            self.forward(Signal::SIGTERM, false);
        }
    }

    /// Ends a job that does not end by itself in time: SIGTERM, then SIGKILL.
    pub(super) fn escalate(&mut self) {
        let abort_time = self.command.engine.abort_time();
        if self.failing.is_some_and(|since| since.elapsed() > abort_time) {
            self.stop();
        }
        if let Some((since, killed @ false)) = &mut self.stopping
            && since.elapsed() > GRACE
        {
            *killed = true;
            self.forward(Signal::SIGKILL, false);
        }
    }

    /// Ends both jobs.
    pub(super) fn end(&mut self) {
        self.progress.end();
        for child in &mut self.ranks {
            let _ = child.kill();
            let _ = child.wait();
        }
        if self.command.engine.spawns_ranks() {
            let in_order = !self.failure.is_some() && self.status.is_none_or(|s| s.success());
            let timeouts = match self.stopping {
                Some((_, true)) => EndTimeouts::IMMEDIATE,
                None if in_order => EndTimeouts { linger: LINGER, grace: GRACE },
                _ => EndTimeouts { linger: Duration::ZERO, grace: GRACE },
            };
            let outside = self.outside();
            descendants::end(&outside, timeouts, || self.signals.next().is_some_and(ReceivedSignal::ends));
        }
        let Some(mut agents) = self.agents.take() else { return };
        // Agents end after their ranks, and their last reports are still to be read.
        if !self.failure.is_some() && self.agents_end_within(NOTICE_TIMEOUT, &mut agents) {
            return;
        }
        // An mpiexec that is ended while it starts its daemon may leave the daemon and the agent
        // behind.
        descendants::adopt();
        let pid = Pid::from_raw(agents.id() as i32);
        let asked = kill(pid, Signal::SIGTERM);
        // A stopped agent could not end otherwise.
        let _ = kill(pid, Signal::SIGCONT);
        if asked.is_err() || !self.agents_end_within(GRACE, &mut agents) {
            let _ = agents.kill();
            let _ = agents.wait();
        }
        let timeouts = EndTimeouts { linger: NOTICE_TIMEOUT, grace: GRACE };
        descendants::end(&self.foreign, timeouts, || self.signals.next().is_some_and(ReceivedSignal::ends));
    }

    /// Returns whether the agents end within `limit`, and handles events meanwhile.
    pub(super) fn agents_end_within(&mut self, limit: Duration, agents: &mut Child) -> bool {
        let begun = Instant::now();
        loop {
            let ended = !matches!(agents.try_wait(), Ok(None));
            for line in self.agent_lines.read() {
                self.handle_line(&line);
            }
            if ended || begun.elapsed() >= limit {
                return ended;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
