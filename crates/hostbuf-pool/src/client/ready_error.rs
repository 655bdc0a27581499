//! The reasons why a reader cannot wait for the content of a block.

use std::fmt;

use hostbuf_cuda::CudaError;

/// The reason why a reader cannot wait for the content of a block on a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReadyError {
    /// The producer has ended, and the work that writes the content with it.
    ProducerEnded {
        /// The error with which the driver answers for the event of a process that has ended;
        /// `None` if it answers that the work is not complete.
        driver: Option<CudaError>,
    },
    /// The driver's error.
    Cuda(CudaError),
    /// The process is a child forked from the one that acquired the block.
    Forked,
}

impl fmt::Display for ReadyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReadyError::ProducerEnded { driver: None } => f.write_str(
                "the producer of the block has ended before the GPU had written it: release the block, and wait for the next producer",
            ),
            ReadyError::ProducerEnded { driver: Some(error) } => write!(
                f,
                "the producer of the block has ended, and the GPU may not have written it: release the block, and wait for the next producer ({error})"
            ),
            ReadyError::Cuda(error) => error.fmt(f),
            ReadyError::Forked => f.write_str("a forked child has no part in its parent's blocks"),
        }
    }
}

impl std::error::Error for ReadyError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            ReadyError::Cuda(error) | ReadyError::ProducerEnded { driver: Some(error) } => Some(error),
            _ => None,
        }
    }
}

impl From<CudaError> for ReadyError {
    fn from(error: CudaError) -> ReadyError {
        ReadyError::Cuda(error)
    }
}
