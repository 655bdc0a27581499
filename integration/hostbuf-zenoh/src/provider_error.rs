//! The errors of a provider.

use std::fmt;

use hostbuf_pool::PoolError;

/// The reason why there is no provider, or no message.
#[derive(Debug)]
#[non_exhaustive]
pub enum ProviderError {
    /// The pool has refused the segment, or does not answer.
    Pool(PoolError),
    /// zenoh's numbers do not suffice for the blocks of the segment.
    Unaddressable {
        /// The number of the segment in its pool.
        segment: u32,
        /// The number of blocks.
        blocks: u32,
    },
    /// The message is longer than a block, or empty.
    TooLong {
        /// The requested length in bytes.
        length: usize,
    },
    /// zenoh or its readers have all blocks.
    Exhausted,
    /// zenoh fails for this reason.
    Zenoh(String),
}

impl fmt::Display for ProviderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ProviderError::Pool(error) => error.fmt(f),
            ProviderError::Unaddressable { segment, blocks } => write!(
                f,
                "zenoh cannot address {blocks} blocks of segment {segment}: use at most 256 blocks; after 16777216 segments restart the broker"
            ),
            ProviderError::TooLong { length } => write!(
                f,
                "no block for a message of {length} bytes: a message has at least one byte and at most those of a block; make longer blocks, or send ordinary memory"
            ),
            ProviderError::Exhausted => f.write_str(
                "no free block: readers hold all of them; make more blocks, drop samples sooner, or send ordinary memory",
            ),
            ProviderError::Zenoh(why) => write!(f, "zenoh cannot allocate a message: {why}"),
        }
    }
}

impl std::error::Error for ProviderError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            ProviderError::Pool(error) => Some(error),
            _ => None,
        }
    }
}

impl From<PoolError> for ProviderError {
    fn from(error: PoolError) -> ProviderError {
        ProviderError::Pool(error)
    }
}
