//! The error of a job, in the one form that goes from a rank through the agents to the launcher.

use std::fmt;

use hostbuf::Error;
use hostbuf::job::{Collective, Reduce};
use hostbuf_os::process;

use super::exit_class::ExitClass;

/// The reason why a job, or a rank of it, has failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobError {
    /// The class, which becomes the exit status.
    pub class: ExitClass,
    /// The line for the user.
    pub message: String,
}

/// The largest number of bytes that another agent gets of an error.
const PACKED: usize = 1024;

impl JobError {
    /// Makes an error from its class and the line for the user.
    pub fn new(class: ExitClass, message: impl Into<String>) -> JobError {
        JobError { class, message: message.into() }
    }

    /// Returns the class and the text for another agent, which names this agent unless the text
    /// names its host itself.
    fn pack(&self, rank: usize) -> [u8; PACKED] {
        let text = match self.class {
            ExitClass::NoSpace | ExitClass::Disagreed => self.message.clone(),
            _ => format!("rank {rank} on {}: {}", process::host_name(), self.message),
        };
        let mut packed = [0; PACKED];
        packed[0] = self.class.status();
        let length = text.len().min(PACKED - 1);
        packed[1..=length].copy_from_slice(&text.as_bytes()[..length]);
        packed
    }

    fn unpack(packed: &[u8; PACKED]) -> JobError {
        let class = ExitClass::from_status(packed[0]).unwrap_or(ExitClass::General);
        let text = String::from_utf8_lossy(&packed[1..]);
        JobError::new(class, text.trim_end_matches('\0'))
    }
}

/// Returns the result of this agent if all agents have succeeded, and else the error of the first
/// agent that has failed. Collective.
pub(super) fn first_error<T>(group: &dyn Collective, result: Result<T, JobError>) -> Result<T, JobError> {
    let mut first = [if result.is_err() { group.rank() as u64 } else { u64::MAX }];
    group.all_reduce(&mut first, Reduce::Min)?;
    if first[0] == u64::MAX {
        return result;
    }
    let root = first[0] as usize;
    let own = result.err().filter(|_| root == group.rank());
    let mut packed = own.as_ref().map_or([0; PACKED], |error| error.pack(root));
    group.broadcast(&mut packed, root)?;
    Err(own.unwrap_or_else(|| JobError::unpack(&packed)))
}

impl From<Error> for JobError {
    fn from(error: Error) -> JobError {
        JobError::new(ExitClass::of(&error), error.to_string())
    }
}

impl fmt::Display for JobError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_keeps_its_class_on_the_way_to_another_agent() {
        let space = JobError::new(ExitClass::NoSpace, "not enough memory on h1");
        assert_eq!(JobError::unpack(&space.pack(1)), space);
        let other = JobError::unpack(&JobError::new(ExitClass::Unsupported, "no é").pack(3));
        assert_eq!(other.class, ExitClass::Unsupported);
        assert_eq!(other.message, format!("rank 3 on {}: no é", process::host_name()));
        let long = JobError::unpack(&JobError::new(ExitClass::Os, "x".repeat(2 * PACKED)).pack(0));
        assert!(long.class == ExitClass::Os && long.message.len() == PACKED - 1);
    }
}
