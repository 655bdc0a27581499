//! One result for all ranks, with the kind of the error.

use hostbuf::Error;
use hostbuf::job::{Collective, Reduce};
use hostbuf_os::process;

use super::load_error::{LoadError, LoadErrorKind};

/// The length of an encoded error: kind (1), length of the host (1), rank (8), host, message. It is
/// one part of a broadcast of `job::Local`.
const RECORD: usize = 1024;
const HEAD: usize = 10;
/// The longest name of a host.
const MAX_HOST: usize = 64;

/// Gives all ranks one result: each its own value if all ranks have one, otherwise the error of the
/// lowest rank that failed. Collective.
///
/// # Errors
/// On the lowest rank that failed: its own error. On the others: [`LoadError::Elsewhere`] with its
/// kind. [`LoadError::Job`] if the collective operation fails.
pub(crate) fn all_or_none<T>(group: &dyn Collective, result: Result<T, LoadError>) -> Result<T, LoadError> {
    let mut lowest = [if result.is_err() { group.rank() as u64 } else { u64::MAX }];
    group.all_reduce(&mut lowest, Reduce::Min)?;
    if lowest[0] == u64::MAX {
        return result;
    }
    let failed = usize::try_from(lowest[0]).ok().filter(|&rank| rank < group.size());
    let failed = failed.ok_or_else(|| Error::Collective {
        operation: "all_reduce",
        why: format!("rank {} is not in the group", lowest[0]),
    })?;
    let mut record = [0; RECORD];
    let is_own = failed == group.rank();
    if let (true, Err(error)) = (is_own, &result) {
        encode(error, failed, &mut record);
    }
    group.broadcast(&mut record, failed)?;
    match result {
        Err(own) if is_own => Err(own),
        _ => Err(decode(&record)),
    }
}

/// Returns the beginning of a text that has at most `bytes` bytes.
fn cut(text: &str, bytes: usize) -> &[u8] {
    let end = (0..=bytes.min(text.len())).rev().find(|&end| text.is_char_boundary(end));
    &text.as_bytes()[..end.unwrap_or(0)]
}

fn encode(error: &LoadError, rank: usize, record: &mut [u8; RECORD]) {
    let own = process::host_name();
    let (host, rank, message) = match error {
        // The error of a rank that this one has got it from.
        LoadError::Elsewhere { host, rank, message, .. } => (host, *rank, message.clone()),
        other => (&own, rank, other.to_string()),
    };
    let host = cut(host, MAX_HOST);
    record[0] = error.kind() as u8;
    record[1] = host.len() as u8;
    record[2..HEAD].copy_from_slice(&(rank as u64).to_le_bytes());
    let (to_host, to_message) = record[HEAD..].split_at_mut(host.len());
    to_host.copy_from_slice(host);
    let message = cut(&message, to_message.len());
    to_message[..message.len()].copy_from_slice(message);
}

fn decode(record: &[u8; RECORD]) -> LoadError {
    let text = |bytes: &[u8]| {
        let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
        String::from_utf8_lossy(&bytes[..end]).into_owned()
    };
    let (host, message) = record[HEAD..].split_at(usize::from(record[1]));
    let rank = record[2..HEAD].iter().rev().fold(0u64, |rank, &byte| rank << 8 | u64::from(byte));
    LoadError::Elsewhere {
        host: text(host),
        rank: usize::try_from(rank).unwrap_or(usize::MAX),
        kind: LoadErrorKind::from_code(record[0]),
        message: text(message),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::FileProblem;

    #[test]
    fn an_error_arrives_with_its_kind_and_its_rank() {
        let mut record = [0; RECORD];
        let path = "x".repeat(2000);
        encode(&LoadError::File(FileProblem::EmptyFolder.at(&path)), 7, &mut record);
        let arrived = decode(&record);
        assert_eq!(arrived.kind(), LoadErrorKind::Missing);
        let LoadError::Elsewhere { host, rank, message, .. } = &arrived else { panic!("{arrived}") };
        assert_eq!((host.as_str(), *rank), (process::host_name().as_str(), 7));
        assert!(message.starts_with("xxxx") && message.len() > 900);
        // Passed on by another rank it stays the error of its origin.
        let mut again = [0; RECORD];
        encode(&arrived, 3, &mut again);
        assert_eq!(again, record);
    }

    #[test]
    fn random_records_are_errors() {
        let LoadError::Elsewhere { kind, .. } = decode(&[0xff; RECORD]) else { panic!("of another rank") };
        assert_eq!(kind, LoadErrorKind::Job);
    }
}
