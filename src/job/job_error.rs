//! The error of a job, in the one form that goes from a rank through the agents to the launcher,
//! and from a rank to the others of its group.

use std::fmt;

use hostbuf_protocol::failure::{ErrorClass, ErrorRecord, MAX_OPERANDS};

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

impl fmt::Display for JobError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for JobError {}
