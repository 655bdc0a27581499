//! The first reports of the agents: how many there are, and whether they come at all.

use std::time::Duration;

use hostbuf::{ErrorClass, JobError};

use super::state::Launcher;

/// The shortest time that the engine gets to start the agents, which may take seconds.
const SHORTEST_START: Duration = Duration::from_secs(60);

impl Launcher<'_> {
    /// Counts an agent on `host` that is ready, and knows that there are `agents` of them. Fails
    /// the job if agents do not know of each other, as if each were a job of its own.
    pub(super) fn count_agent(&mut self, host: &str, agents: usize) {
        self.ready += 1;
        let started = self.expected.map_or(self.ready, |expected| expected.max(self.ready));
        if agents > 1 || started == 1 {
            self.expected = Some(agents);
            return;
        }
        let title = self.command.release.title();
        let message = format!(
            "the agent on {host} knows of no other agent, though {title} has started {started}: it is probably of another MPI than \
             {}. Leave out --agent, or name an agent for {title}",
            self.command.path.display()
        );
        self.failure.record(JobError::new(ErrorClass::Attach, message).with_host(host.to_owned()));
        self.stop();
    }

    /// Returns the error of a job whose engine has started no agent within the limit of the start.
    /// In an allocation the engine may wait for its turn.
    pub(super) fn late_agents(&mut self) -> Option<JobError> {
        let limit = self.start_limit?.max(SHORTEST_START);
        if self.ready > 0 || self.is_allocated || self.failure.is_some() || self.started_at.elapsed() < limit
        {
            return None;
        }
        self.shows_engine = true;
        let message = format!(
            "{} has not started an agent on every host within {} s: check that `{} hostname` works on these hosts, or raise \
             --start-timeout",
            self.command.release.title(),
            limit.as_secs(),
            self.command.path.display()
        );
        Some(JobError::new(ErrorClass::Attach, message))
    }
}
