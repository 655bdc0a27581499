//! The error of a job, in the one form that goes from a rank through the agents to the launcher,
//! and from a rank to the others of its group.

use std::fmt;

use hostbuf_os::process;
use hostbuf_protocol::failure::{ErrorClass, ErrorRecord, MAX_OPERANDS};

use super::{Collective, Reduce};
use crate::error::{Error, Result};

/// The reason why a job, a rank of it or a collective call has failed: an [`ErrorRecord`] that owns
/// its texts. It is made once, in the process that detects the error.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct JobError {
    /// The class, which becomes the exit status.
    pub class: ErrorClass,
    /// The line for the user.
    pub message: String,
    /// The host of the process that detected the error, if it is known.
    pub host: Option<String>,
    /// The rank of that process, if it has one and the rank is known.
    pub rank: Option<usize>,
    /// The operands of a class that the receiver restores as a typed error: at most
    /// [`MAX_OPERANDS`].
    pub(super) operands: Vec<String>,
}

/// The error of the lowest rank that failed, as all ranks of a group get it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FirstError {
    /// The rank in the group.
    pub rank: usize,
    /// The error, with the host of that rank.
    pub error: JobError,
}

impl JobError {
    /// Makes an error from its class and the line for the user.
    pub fn new(class: ErrorClass, message: impl Into<String>) -> JobError {
        JobError { class, message: message.into(), host: None, rank: None, operands: Vec::new() }
    }

    /// Returns the error with the host of the process that detected it, if none is known yet.
    #[must_use]
    pub fn with_host(mut self, host: impl Into<String>) -> JobError {
        self.host.get_or_insert_with(|| host.into());
        self
    }

    /// Returns the error with the line that `change` makes of its line.
    #[must_use]
    pub fn map_message(mut self, change: impl FnOnce(String) -> String) -> JobError {
        self.message = change(self.message);
        self
    }

    /// Returns the error of the lowest rank that failed, on all ranks, or `None` if no rank failed.
    /// `own` is the error of this rank. Collective.
    ///
    /// # Errors
    /// [`Error::Collective`].
    pub fn first(group: &dyn Collective, own: Option<JobError>) -> Result<Option<FirstError>> {
        let mut lowest = [if own.is_some() { group.rank() as u64 } else { u64::MAX }];
        group.all_reduce(&mut lowest, Reduce::Min)?;
        if lowest[0] == u64::MAX {
            return Ok(None);
        }
        let rank = lowest[0] as usize;
        let mut record = [0; ErrorRecord::SIZE];
        if let (true, Some(mut own)) = (rank == group.rank(), own) {
            own.host.get_or_insert_with(process::host_name);
            record = own.encode();
        }
        group.broadcast(&mut record, rank)?;
        let error = JobError::decode(&record).ok_or_else(|| Error::Collective {
            operation: "broadcast",
            why: format!("rank {rank} failed, and sent an error that this rank cannot read"),
        })?;
        Ok(Some(FirstError { rank, error }))
    }

    /// Returns the result of this agent if all agents have succeeded, and else the error of the
    /// first agent that has failed. Collective.
    ///
    /// # Errors
    /// The error of the first agent that has failed; that of the collective operations.
    pub fn all_or_first<T>(
        group: &dyn Collective,
        result: std::result::Result<T, JobError>,
    ) -> std::result::Result<T, JobError> {
        let first = JobError::first(group, result.as_ref().err().cloned())?;
        match (first, result) {
            (None, result) => result,
            (Some(first), Err(own)) if first.rank == group.rank() => Err(own.with_host(process::host_name())),
            (Some(FirstError { error, .. }), _) => Err(error.with_host_in_line()),
        }
    }

    /// Puts the host in front of the line, unless the line names that host.
    fn with_host_in_line(self) -> JobError {
        let Some(host) = self.host.clone() else { return self };
        let is_named = self.message.match_indices(&format!("on {host}")).any(|(at, found)| {
            let next = self.message[at + found.len()..].chars().next();
            !next.is_some_and(|letter| letter.is_alphanumeric() || letter == '-' || letter == '_')
        });
        if is_named { self } else { self.map_message(|message| format!("on {host}: {message}")) }
    }

    /// Returns the error as a record, which a message can carry.
    #[must_use]
    pub fn record(&self) -> ErrorRecord<'_> {
        let mut operands = [""; MAX_OPERANDS];
        for (to, operand) in operands.iter_mut().zip(&self.operands) {
            *to = operand;
        }
        ErrorRecord {
            class: self.class,
            rank: self.rank.map(|rank| rank as u64),
            host: self.host.as_deref().unwrap_or_default(),
            line: &self.message,
            operands,
        }
    }

    /// Encodes the error for another process. A message of more than
    /// [`TEXT_MAX`](hostbuf_protocol::limits::TEXT_MAX) bytes is cut at the end of a character.
    #[must_use]
    pub fn encode(&self) -> [u8; ErrorRecord::SIZE] {
        let mut bytes = [0; ErrorRecord::SIZE];
        self.record().encode(&mut bytes);
        bytes
    }

    /// Decodes the error of another process. Returns `None` if the bytes are not one.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<JobError> {
        ErrorRecord::decode(bytes).map(|record| JobError::from(&record))
    }
}

impl From<&ErrorRecord<'_>> for JobError {
    fn from(record: &ErrorRecord<'_>) -> JobError {
        let ErrorRecord { class, rank, host, line, operands } = *record;
        // The unused operands are at the end.
        let used = operands.iter().rposition(|operand| !operand.is_empty()).map_or(0, |last| last + 1);
        JobError {
            class,
            message: line.to_owned(),
            host: (!host.is_empty()).then(|| host.to_owned()),
            rank: rank.and_then(|rank| usize::try_from(rank).ok()),
            operands: operands[..used].iter().map(|&operand| operand.to_owned()).collect(),
        }
    }
}

/// Gives all ranks one result: each its own value if all ranks have one, otherwise the error of the
/// lowest rank that failed.
///
/// # Errors
/// On the lowest rank that failed: its own error. On the others: [`Error::NoSpace`],
/// [`Error::Disagreed`] or [`Error::Elsewhere`] with the class and the operands of that error. An
/// error that this rank has received from another one keeps the host and the rank of its origin;
/// one that it has received from the agent of a host stays
/// [`AttachError::JobFailed`](crate::AttachError::JobFailed).
pub fn all_or_none<T>(group: &dyn Collective, result: Result<T>) -> Result<T> {
    let own = result.as_ref().err().map(|error| {
        let mut own = JobError::from(error);
        // The agent of a host has no rank, and this rank may be on another host.
        if own.host.is_none() || !matches!(error, Error::Attach(_)) {
            own.rank.get_or_insert(group.rank());
        }
        own
    });
    match (JobError::first(group, own)?, result) {
        (None, result) => result,
        (Some(first), Err(own)) if first.rank == group.rank() => Err(own),
        (Some(FirstError { error, .. }), _) => Err(error.into()),
    }
}

impl fmt::Display for JobError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for JobError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_of_another_agent_names_its_host_once() {
        let of = |host: &str, message: &str| {
            let mut error = JobError::new(ErrorClass::Unsupported, message);
            error.host = Some(host.into());
            let error = error.with_host_in_line();
            assert_eq!(error.class, ErrorClass::Unsupported);
            error.message
        };
        assert_eq!(of("h1", "no huge pages"), "on h1: no huge pages");
        for named in ["not enough memory on h1: 2 GiB requested", "program \"x\" does not exist on h1"] {
            assert_eq!(of("h1", named), named);
        }
        assert_eq!(of("h1", "rank 3 on h10 has ended"), "on h1: rank 3 on h10 has ended");
    }
}
