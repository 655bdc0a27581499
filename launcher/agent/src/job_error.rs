//! The error of a job among its agents: all get the error of the first agent that has failed.

use hostbuf::job::{Collective, FirstError, first_error};

pub use hostbuf::JobError;

/// Returns the result of this agent if all agents have succeeded, and else the error of the first
/// agent that has failed. Collective.
pub(super) fn all_or_first_error<T>(
    group: &dyn Collective,
    result: Result<T, JobError>,
) -> Result<T, JobError> {
    let first = first_error(group, result.as_ref().err().cloned())?;
    match (first, result) {
        (None, result) => result,
        (Some(first), Err(own)) if first.rank == group.rank() => Err(own),
        (Some(FirstError { error, .. }), _) => Err(with_host(error)),
    }
}

/// Puts the host of another agent in front of the line, unless the line names that host.
fn with_host(error: JobError) -> JobError {
    let Some(host) = error.host.clone() else { return error };
    let is_named = error.message.match_indices(&format!("on {host}")).any(|(at, found)| {
        let next = error.message[at + found.len()..].chars().next();
        !next.is_some_and(|letter| letter.is_alphanumeric() || letter == '-' || letter == '_')
    });
    if is_named { error } else { error.map_message(|message| format!("on {host}: {message}")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit_class::ExitClass;

    #[test]
    fn the_error_of_another_agent_names_its_host_once() {
        let of = |host: &str, message: &str| {
            let mut error = JobError::new(ExitClass::Unsupported, message);
            error.host = Some(host.into());
            let error = with_host(error);
            assert_eq!(error.class, ExitClass::Unsupported);
            error.message
        };
        assert_eq!(of("h1", "no huge pages"), "on h1: no huge pages");
        for named in ["not enough memory on h1: 2 GiB asked", "program \"x\" does not exist on h1"] {
            assert_eq!(of("h1", named), named);
        }
        assert_eq!(of("h1", "rank 3 on h10 has ended"), "on h1: rank 3 on h10 has ended");
    }
}
