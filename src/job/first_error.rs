//! The first error of a group, which all of its ranks get.

use hostbuf_os::process;
use hostbuf_protocol::failure::ErrorRecord;

use super::{Collective, JobError, Reduce};
use crate::error::{Error, Result};

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

#[cfg(test)]
mod tests {
    use hostbuf_protocol::failure::ErrorClass;

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
