//! The place where the phases of an agent stop, and the results of all agents together.

use hostbuf::job::{Collective, Reduce};
use hostbuf::{Error, ErrorClass, JobError};

use super::orders::{Event, ServerHandle};
use super::timed_error::TimedError;

/// The place where the phases stopped.
pub(super) enum Stop {
    /// This agent, and the others do not know the error yet.
    Here(TimedError),
    /// Another agent, which will report its error.
    There,
    /// All agents, with the same error.
    Everywhere(JobError),
}

impl From<Error> for Stop {
    /// Returns the stop because of an error of a collective operation, which all agents have.
    fn from(error: Error) -> Stop {
        Stop::Everywhere(error.into())
    }
}

/// Returns the result of this agent if all agents have succeeded. Collective.
pub(super) fn together<T, E: Into<TimedError>>(
    group: &dyn Collective,
    result: Result<T, E>,
) -> Result<T, Stop> {
    let mut well = [u64::from(result.is_ok())];
    group.all_reduce(&mut well, Reduce::Min)?;
    match result {
        Err(error) => Err(Stop::Here(error.into())),
        Ok(_) if well[0] == 0 => Err(Stop::There),
        Ok(value) => Ok(value),
    }
}

/// Returns the server's next event; the loss of a rank is an error.
pub(super) fn event(server: &ServerHandle) -> Result<Event, TimedError> {
    match server.events.recv() {
        Ok(Event::Lost(error)) => Err(error),
        Ok(event) => Ok(event),
        Err(_) => Err(is_ending().into()),
    }
}

/// Returns the error of an agent whose server has ended.
pub(super) fn is_ending() -> JobError {
    JobError::new(ErrorClass::Attach, "the agent is ending")
}
