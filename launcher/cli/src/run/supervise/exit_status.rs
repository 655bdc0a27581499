//! The result of a job, and the messages about processes that have failed.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use hostbuf::{ErrorClass, JobError};

use super::super::death::{FirstDeath, death};
use super::super::shortage::shortage;
use super::events;
use super::state::Launcher;
use crate::engines::{Diagnosis, EndedProcess};
use hostbuf_agent::log;
use hostbuf_os::process;

/// The largest number of lines of the agent of this host that a message quotes: enough for the
/// remedies at their end.
const MOST_SAID: usize = 16;
/// The time that a rank may take to end after its connection.
const NOTICE_TIMEOUT: Duration = Duration::from_millis(500);

impl Launcher<'_> {
    /// Returns whether the engine crashed while it started the agents, before any rank was started.
    pub(super) fn engine_crashed(&self) -> bool {
        self.spawned.is_empty()
            && self.ended_by.is_none()
            && self.agent_noise.seen.iter().any(|line| self.command.engine.reports_crash(line))
    }

    /// Returns the exit status of the program's job as a shell does: 128 plus the number of a
    /// signal.
    pub(super) fn exit_status(&self) -> u8 {
        let Some(status) = self.status else { return 0 };
        match (status.code(), status.signal()) {
            (Some(code), _) => code as u8,
            (None, signal) => 128u8.wrapping_add(signal.unwrap_or(0) as u8),
        }
    }

    /// Records the end of a process of the program's job. The first failure decides the result.
    ///
    /// If a signal ends a rank, the other ranks may exit with an error because of it and still be
    /// collected first. So a rank that had already begun to end when the first error was seen
    /// decides the result if it was ended by a signal.
    pub(super) fn record_end(&mut self, pid: u32, status: ExitStatus) {
        let local = self.command.engine.spawns_ranks();
        let rank = self.spawned.iter().position(|&spawned| local && spawned == pid);
        let was_ending = self.ending.contains(&pid);
        let mut decides = self.status.is_none_or(|first| first.success());
        if let Some(rank) = rank
            && status.signal().is_some()
            && self.first.is_none()
            && (self.stopping.is_none() || was_ending)
        {
            self.first = Some(FirstDeath { rank, pid, status });
            decides |= was_ending;
        }
        if decides {
            self.status = Some(status);
        }
        if decides && !status.success() && local {
            let ending = self.spawned.iter().filter(|&&pid| process::is_ending(pid as i32));
            self.ending = ending.copied().collect();
        }
    }

    /// Names the rank that a signal has ended, as mpirun does, unless the user has sent that
    /// signal.
    pub(super) fn report_ended_rank(&self) {
        if let Some(first) = &self.first
            && first.status.signal() != self.asked_to_end.map(|signal| signal as i32)
        {
            hostbuf_agent::complain!("hostbuf run: {}", first.text());
        }
    }

    /// Reports that the engine itself has failed, and the remedy if it may have had too few slots.
    /// Its own messages are on standard error already.
    pub(super) fn report_engine_failure(&self) {
        let failed = self.status.filter(|status| !status.success());
        let Some(status) = failed.filter(|_| !self.agreed && self.asked_to_end.is_none()) else { return };
        if self.command.engine.spawns_ranks() {
            return;
        }
        let name = self.command.release.title();
        let hint = shortage(self.command, self.size).map_or(String::new(), |hint| format!(". {hint}"));
        hostbuf_agent::complain!(
            "hostbuf run: {name} ended ({status}) before any rank had the buffer; see its own messages above{hint}"
        );
    }

    /// Describes the rank that was lost first.
    pub(super) fn lost(&self) -> Option<JobError> {
        let first = self.first.as_ref()?;
        let message = format!("{} before all ranks had the buffer: {}", first.text(), first.remedy());
        Some(JobError::new(ErrorClass::Lost, message))
    }

    /// Returns the cause of an error that an agent has reported. An agent notices the end of a rank
    /// before this launcher, and does not learn of the signal.
    pub(super) fn cause_of_loss(&mut self, error: JobError) -> JobError {
        let rank = error.rank.filter(|_| self.command.engine.spawns_ranks());
        let pid = rank.and_then(|rank| self.spawned.get(rank).copied());
        let begun = Instant::now();
        while let Some(pid) = pid
            && self.lost().is_none()
            && process::is_ending(pid as i32)
            && begun.elapsed() < NOTICE_TIMEOUT
            && self.reap().is_ok()
        {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.lost().unwrap_or(error)
    }

    /// Returns whether a rank has missed its agent before all ranks had the buffer, and has left it
    /// to this launcher to report that.
    pub(super) fn lacks_agent(&self) -> bool {
        self.command.engine.spawns_ranks() && self.has_missed_agent()
    }

    /// Returns whether the program's job has ended with the status of a rank that has missed its
    /// agent.
    fn has_missed_agent(&self) -> bool {
        let missed = Some(i32::from(ErrorClass::Attach.status()));
        self.status.is_some_and(|status| status.code() == missed)
    }

    /// Returns whether the engine is about to end the agents' job and to tell which agent has
    /// ended, after the ranks have missed it.
    pub(super) fn awaits_end_of_agents(&mut self) -> bool {
        let awaits = !self.agreed
            && !self.command.engine.spawns_ranks()
            && self.asked_to_end.is_none()
            && self.agents.is_some()
            && self.has_missed_agent();
        let limit = self.command.engine.abort_time();
        awaits && self.over.get_or_insert_with(Instant::now).elapsed() < limit
    }

    /// Returns the cause of the error of a failed job. If a signal has ended an agent, the loss of
    /// a rank is a consequence.
    pub(super) fn cause_of(&mut self, error: JobError) -> JobError {
        if error.class != ErrorClass::Lost || self.agents.is_some() {
            return error;
        }
        let of_agents = self.agents_died();
        if self.ended_agent().is_some() { of_agents } else { error }
    }

    /// Returns the agent because of which the engine has ended the agents' job.
    fn ended_agent(&self) -> Option<EndedProcess> {
        let output = self.agent_noise.seen.iter().chain(&self.agent_lines.seen);
        let lines: Vec<&str> = output.map(|line| line.trim()).collect();
        self.command.engine.ended_process(&lines)
    }

    /// Describes the end of the agents' job.
    pub(super) fn agents_died(&mut self) -> JobError {
        let rest = self.agent_noise.drain();
        if log::is_wanted() {
            events::print(&rest);
        }
        self.no_agents()
    }

    /// Returns the end of a message about the agents: the cause and the remedy, or the only line of
    /// the engine. Several lines of an engine are printed in front of the message, as they are.
    fn said(&mut self) -> String {
        let noise = self.agent_noise.seen.iter().map(|l| l.trim());
        let mut said: Vec<&str> = noise.filter(|l| l.chars().any(char::is_alphanumeric)).collect();
        let engine = self.command.engine;
        self.shows_engine = said.len() > 1 && !engine.spawns_ranks();
        if let Some(Diagnosis { cause, remedy }) = engine.diagnose(&said) {
            return format!(": {cause}. {remedy}");
        }
        if said.is_empty() {
            return String::new();
        }
        if self.shows_engine {
            return "; see its own messages above".to_owned();
        }
        if said.len() > MOST_SAID {
            said.truncate(MOST_SAID);
            said.push("...");
        }
        format!(": {}", said.join(" "))
    }

    /// Prints the lines of the engine to which the error of the job refers, unless they have been
    /// printed as they came.
    pub(super) fn show_engine(&self) {
        if self.shows_engine && !log::is_wanted() {
            events::print(&self.agent_noise.seen);
        }
    }

    /// Describes why there are no agents.
    pub(super) fn no_agents(&mut self) -> JobError {
        let early = self.ready == 0;
        let when = if early { "before every host had an agent" } else { "before all ranks had the buffer" };
        if let Some(EndedProcess { host, signal }) = self.ended_agent() {
            let signal = process::signal_name(signal);
            let message = format!(
                "the agent on {host} was ended {when} by {signal}. Look for the cause on that host (`dmesg` shows whether the kernel \
                 ended it for lack of memory), and start the job again"
            );
            return JobError::new(ErrorClass::Attach, message).with_host(host);
        }
        let said = self.said();
        let release = self.command.release.title();
        let local = self.command.engine.spawns_ranks();
        let program = if local {
            "the agent of this host".into()
        } else {
            format!("{release}, which runs the agents,")
        };
        let message = match self.agents_status {
            Some(status) if status.signal().is_some() => {
                format!("{program} was ended {when} by {}{said}", death(status))
            }
            _ if early && local && !said.is_empty() => {
                format!("the agent of this host could not start{said}")
            }
            _ if early && !said.is_empty() => {
                format!("{release} could not start an agent on every host{said}")
            }
            Some(status) => format!("{program} ended {when} ({status}){said}"),
            None => format!("{program} does not continue{said}"),
        };
        JobError::new(ErrorClass::Attach, message)
    }
}
