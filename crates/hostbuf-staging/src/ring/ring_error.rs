//! The reasons why there is no ring.

use std::{fmt, io};

use super::host_memory::ALIGNMENT;
use super::ring_options::InvalidRing;
use crate::device::DeviceError;

/// The reason why there is no ring.
#[derive(Debug)]
#[non_exhaustive]
pub enum RingError {
    /// An option is invalid.
    Invalid(InvalidRing),
    /// The memory has too few bytes, or does not begin at a multiple of 4096.
    Memory {
        /// The number of bytes that the slots need.
        needed: usize,
        /// The number of bytes that there are.
        bytes: usize,
        /// The address of the first byte.
        address: usize,
    },
    /// The process gets no memory for the slots.
    NoMemory {
        /// The number of bytes.
        bytes: usize,
    },
    /// The memory belongs to a frozen buffer.
    Frozen {
        /// The number of bytes.
        bytes: usize,
        /// The address of the first byte.
        address: usize,
    },
    /// The device makes no event.
    Device(DeviceError),
    /// The memory cannot be registered.
    Register(hostbuf_register::Error),
    /// The page of the counters cannot be mapped.
    Counters(io::Error),
    /// The kernel starts no thread.
    Threads(io::Error),
}

impl fmt::Display for RingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RingError::Invalid(error) => error.fmt(f),
            RingError::Memory { needed, bytes, address } => write!(
                f,
                "invalid memory of {bytes} bytes at {address:#x} for a ring: its slots need {needed} bytes from a multiple of \
                 {ALIGNMENT} on"
            ),
            RingError::NoMemory { bytes } => write!(
                f,
                "not enough memory for the slots of a ring ({bytes} bytes): request fewer or smaller slots, or raise ulimit -v or -d"
            ),
            RingError::Frozen { bytes, address } => write!(
                f,
                "invalid memory of {bytes} bytes at {address:#x} for a ring: it belongs to a frozen buffer. Make the ring \
                 before the buffer is frozen, or in other memory"
            ),
            RingError::Device(error) => error.fmt(f),
            RingError::Register(error) => error.fmt(f),
            RingError::Counters(error) => write!(f, "mapping the page of a ring's counters: {error}"),
            RingError::Threads(error) => {
                write!(f, "starting the threads of a ring (raise ulimit -u): {error}")
            }
        }
    }
}

impl std::error::Error for RingError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            RingError::Invalid(error) => Some(error),
            RingError::Memory { .. } | RingError::NoMemory { .. } | RingError::Frozen { .. } => None,
            RingError::Device(error) => Some(error),
            RingError::Register(error) => Some(error),
            RingError::Counters(error) | RingError::Threads(error) => Some(error),
        }
    }
}

impl From<InvalidRing> for RingError {
    fn from(error: InvalidRing) -> RingError {
        RingError::Invalid(error)
    }
}

impl From<DeviceError> for RingError {
    fn from(error: DeviceError) -> RingError {
        RingError::Device(error)
    }
}

impl From<hostbuf_register::Error> for RingError {
    fn from(error: hostbuf_register::Error) -> RingError {
        RingError::Register(error)
    }
}
