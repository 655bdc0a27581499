//! The reasons why a reader does not get a block.

use std::fmt;

use crate::error::PoolError;
use crate::header::InvalidHeader;
use crate::pool_id::PoolId;
use crate::token::InvalidToken;

/// The reason why a reader does not get a block.
#[derive(Debug)]
#[non_exhaustive]
pub enum AcquireError {
    /// The bytes are not a valid token.
    InvalidToken(InvalidToken),
    /// The content is gone: the producer has retired or reused the block meanwhile, or has ended.
    Gone,
    /// The token is of a pool to which this process was never connected.
    OtherPool {
        /// The pool of the token.
        token: PoolId,
        /// The description of the pool of this process.
        own: String,
    },
    /// The producer has not published what the token names.
    NotPublished,
    /// The token names a block or a length that its segment does not have.
    OutOfRange,
    /// This process holds as many blocks of the segment as it may.
    Quota {
        /// The number of blocks that it may hold.
        quota: u32,
    },
    /// The header of the block is damaged: its producer has broken the protocol.
    InvalidHeader(InvalidHeader),
    /// The block lies on a GPU: [`Pool::acquire_gpu`](crate::Pool) acquires it.
    OnGpu {
        /// The UUID of the GPU.
        gpu: String,
    },
    /// The block lies on the host: [`Pool::acquire`](crate::Pool::acquire) acquires it.
    OnHost,
    /// The memory of the GPU could not be imported: this process has no driver, or does not see the
    /// GPU, or the driver has refused it. The error is a `CudaError`.
    Gpu(Box<dyn std::error::Error + Send + Sync>),
    /// The segment could not be attached.
    Pool(PoolError),
}

impl fmt::Display for AcquireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AcquireError::InvalidToken(error) => error.fmt(f),
            AcquireError::Gone => f.write_str(
                "the content is gone: its producer has reused the block or has ended; acquire tokens sooner, or let the producer retain more blocks",
            ),
            AcquireError::OtherPool { token, own } => write!(
                f,
                "the token is of another pool ({token}) than that of this process, which is {own}: give all processes the same HOSTBUF_POOL"
            ),
            AcquireError::NotPublished => f.write_str("the token names a block that is not published"),
            AcquireError::OutOfRange => {
                f.write_str("the token names a block or a length that its segment does not have")
            }
            AcquireError::Quota { quota } => write!(
                f,
                "this process holds {quota} blocks of the segment, which is its quota: release some, or raise the producer's quota"
            ),
            AcquireError::OnGpu { gpu } => write!(
                f,
                "the block lies on {gpu}: acquire it as a block on a GPU, in a process that sees this GPU"
            ),
            AcquireError::OnHost => f.write_str("the block lies on the host: acquire it as a block on the host"),
            AcquireError::Gpu(error) => error.fmt(f),
            AcquireError::InvalidHeader(error) => write!(f, "the block has no valid header: {error}"),
            AcquireError::Pool(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for AcquireError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            AcquireError::InvalidToken(error) => Some(error),
            AcquireError::InvalidHeader(error) => Some(error),
            AcquireError::Pool(error) => Some(error),
            AcquireError::Gpu(error) => Some(&**error),
            _ => None,
        }
    }
}

impl From<PoolError> for AcquireError {
    fn from(error: PoolError) -> AcquireError {
        AcquireError::Pool(error)
    }
}

impl From<InvalidToken> for AcquireError {
    fn from(error: InvalidToken) -> AcquireError {
        AcquireError::InvalidToken(error)
    }
}

#[cfg(feature = "cuda")]
impl From<hostbuf_cuda::CudaError> for AcquireError {
    fn from(error: hostbuf_cuda::CudaError) -> AcquireError {
        AcquireError::Gpu(error.into())
    }
}
