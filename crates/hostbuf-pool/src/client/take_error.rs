//! The reasons why a producer gets no block.

use std::fmt;
use std::time::Duration;

use crate::error::PoolError;

/// The reason why a producer gets no block.
#[derive(Debug)]
#[non_exhaustive]
pub enum TakeError {
    /// No block became free in time.
    Timeout {
        /// The time limit.
        limit: Duration,
        /// The use of all blocks, and the readers that hold some.
        details: String,
    },
    /// The producer is closed.
    Closed,
    /// Waiting failed.
    Pool(PoolError),
}

impl fmt::Display for TakeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TakeError::Timeout { limit, details } => write!(
                f,
                "no block became free within {} s: {details}; make more blocks, retain fewer, or end readers that do not release theirs",
                limit.as_secs_f32()
            ),
            TakeError::Closed => {
                f.write_str("no block was taken, since the producer is closed: make another producer")
            }
            TakeError::Pool(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for TakeError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            TakeError::Pool(error) => Some(error),
            TakeError::Timeout { .. } | TakeError::Closed => None,
        }
    }
}

impl From<PoolError> for TakeError {
    fn from(error: PoolError) -> TakeError {
        TakeError::Pool(error)
    }
}
