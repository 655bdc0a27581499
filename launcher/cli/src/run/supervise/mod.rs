//! The launcher while the job runs: it starts both jobs, passes signals on, listens to the agents,
//! and ends both jobs together.

mod events;
mod exit_status;
mod first_reports;
mod shutdown;
mod state;
mod stopped_agent;
mod stopped_process;

use std::os::fd::OwnedFd;
use std::time::Duration;

use hostbuf::JobError;

use super::descendants;
use super::lines::Lines;
use super::plan::RequestedSize;
use super::signals::Signals;
use super::spawn::{Streams, spawn};
use crate::engines::{Invocation, LaunchCommand, LaunchPlan};
use state::Launcher;

pub(super) use state::Verbosity;

/// The time that a host may still take to connect after the engine's ssh has reported that it is
/// unreachable.
const REACH_TIMEOUT: Duration = Duration::from_secs(2);

/// Runs both jobs and returns the exit status of the program's job. `start_limit` limits the time
/// for which an agent of this host may be stopped during the start.
///
/// # Errors
/// The reason why a job cannot be started, or why there is no buffer.
pub(super) fn supervise(
    command: &LaunchCommand,
    plan: LaunchPlan,
    size: RequestedSize,
    start_limit: Option<Duration>,
    verbosity: Verbosity,
) -> Result<u8, JobError> {
    let signals = Signals::block()?;
    if command.engine.spawns_ranks() {
        descendants::adopt();
    }
    let mut launcher = Launcher::new(command, verbosity, &signals, &plan, size, start_limit);
    let mut status = launcher.run(plan.clone());
    launcher.end();
    if status.is_err() && launcher.engine_crashed() {
        tracing::warn!("the engine's own processes crashed while they started; starting them once more");
        launcher = Launcher::new(command, verbosity, &signals, &plan, size, start_limit);
        status = launcher.run(plan);
        launcher.end();
    }
    if status.is_err() {
        launcher.show_engine();
    }
    let class = launcher.class_of_rank;
    status.map_err(|mut error| {
        error.class = class.unwrap_or(error.class);
        error
    })
}

impl Launcher<'_> {
    fn run(&mut self, plan: LaunchPlan) -> Result<u8, JobError> {
        self.foreign = descendants::children();
        self.note(&plan.agents);
        let mut agents = spawn(&plan.agents, Streams::Piped, self.signals.before())?;
        self.agent_lines = Lines::of(agents.stdout.take().map(OwnedFd::from));
        self.agent_noise = Lines::of(agents.stderr.take().map(OwnedFd::from));
        self.agents = Some(agents);
        let mut waiting = Some(plan.ranks);
        loop {
            if waiting.is_some() && self.expected.is_some_and(|n| self.ready >= n) && !self.failure.is_some()
            {
                let lines = waiting.take().unwrap_or_default();
                self.note(&lines[0]);
                for line in &lines {
                    // As with mpirun, only rank 0 reads.
                    let streams = if self.ranks.is_empty() { Streams::Inherited } else { Streams::NoInput };
                    let child = spawn(line, streams, self.signals.before())?;
                    self.spawned.push(child.id());
                    self.ranks.push(child);
                }
            }
            self.reap()?;
            if let Some(error) = self.failure.get().cloned() {
                if self.ranks.is_empty() && !self.awaits_end_of_agents() {
                    if let Some(signal) = self.ended_by {
                        if self.ready == 0 {
                            // They may state what the engine was waiting for.
                            self.shows_engine = true;
                            self.show_engine();
                        }
                        hostbuf_agent::complain!(
                            "hostbuf run: ended by {signal} before all ranks had the buffer"
                        );
                        return Ok(128 + signal as u8);
                    }
                    return Err(self.cause_of(error));
                }
            } else if self.agents.is_none() && !self.agreed {
                let error = self.agents_died();
                self.failure.record(error);
                if self.command.engine.spawns_ranks() {
                    self.stop();
                } else {
                    // Their engine ends them, since they miss their agents.
                    self.stop_soon();
                }
                continue;
            }
            if let Some(error) = self.late_agents().or_else(|| self.stopped_agent()) {
                self.failure.record(error);
                self.stop();
                continue;
            }
            if waiting.is_some() && self.unreachable.is_some_and(|since| since.elapsed() > REACH_TIMEOUT) {
                // The engine would wait for that host for ever.
                let error = self.no_agents();
                self.failure.record(error);
                continue;
            }
            if waiting.is_none() && self.ranks.is_empty() {
                if let Some(status) = self.conclude() {
                    return Ok(status);
                }
                if self.failure.is_some() {
                    continue;
                }
            }
            self.escalate();
            self.wait()?;
        }
    }

    fn note(&self, line: &Invocation) {
        if self.verbosity.verbose {
            let words: Vec<_> = line.words.iter().map(|w| w.to_string_lossy()).collect();
            hostbuf_agent::complain!("hostbuf: starting {}", words.join(" "));
        }
    }
}
