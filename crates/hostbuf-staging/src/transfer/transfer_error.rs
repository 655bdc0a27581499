//! The reasons why a transfer fails.

use std::error::Error;
use std::sync::Arc;
use std::{fmt, io};

use hostbuf_os::printable::printable;

use crate::device::DeviceError;

/// The reason why a transfer has failed. Clones share the cause.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum TransferError {
    /// Reading or writing on the side of the host has failed.
    Io {
        /// The operation: `reading`, or `writing`.
        doing: &'static str,
        /// The name of the source or sink.
        name: String,
        /// The offset of the first byte that was not read or written.
        offset: u64,
        /// The description of the device to or from which the bytes go.
        device: String,
        /// The error.
        source: Arc<io::Error>,
        /// The number of bytes at the beginning of the transfer that have landed.
        landed: u64,
    },
    /// The source ends before the end of the transfer.
    UnexpectedEnd {
        /// The name of the source.
        name: String,
        /// An offset of the requested range at which it has no byte: its end, or beyond that.
        offset: u64,
        /// The description of the device to which the bytes go.
        device: String,
        /// The number of bytes at the beginning of the transfer that have landed.
        landed: u64,
    },
    /// The device has failed. It reports one result for copies that start together, such as those
    /// of the ranges of a batch in one slot; the places are those of the first of them. If the
    /// device was lost before a copy began, they are those of the transfer.
    Device {
        /// The name of the source or sink.
        name: String,
        /// The offset in the source or sink of the first byte of the copy that failed.
        offset: u64,
        /// The device's address of that byte.
        address: u64,
        /// The error, which has the [description](DeviceError::device) of the device.
        source: DeviceError,
        /// The number of bytes at the beginning of the transfer that have landed.
        landed: u64,
    },
    /// The transfer was cancelled, or its ring has ended.
    Cancelled {
        /// The number of bytes at the beginning of the transfer that have landed.
        landed: u64,
    },
    /// Two ranges of a batch that writes overlap. Nothing was written.
    Overlap {
        /// The name of the sink.
        name: String,
        /// The offset of the first byte that two ranges have.
        offset: u64,
    },
    /// A range ends beyond the largest offset of a file. Nothing was moved.
    OutOfRange {
        /// The name of the source or sink.
        name: String,
        /// The offset of the first byte.
        offset: u64,
        /// The number of bytes.
        bytes: u64,
    },
    /// A target is not memory of the ring's device. Nothing was moved.
    OtherDevice {
        /// The description of the ring's device.
        device: String,
        /// The address of the target.
        address: u64,
    },
    /// This process was forked from the one that made the ring.
    Forked,
}

impl TransferError {
    /// Returns the error with the number of bytes at the beginning of the transfer that have
    /// landed.
    pub(crate) fn with_landed(mut self, bytes: u64) -> TransferError {
        match &mut self {
            TransferError::Io { landed, .. }
            | TransferError::UnexpectedEnd { landed, .. }
            | TransferError::Device { landed, .. }
            | TransferError::Cancelled { landed } => *landed = bytes,
            TransferError::Overlap { .. }
            | TransferError::OutOfRange { .. }
            | TransferError::OtherDevice { .. }
            | TransferError::Forked => {}
        }
        self
    }
}

impl fmt::Display for TransferError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TransferError::Io { doing, name, offset, device, source, landed } => {
                let name = printable(name);
                write!(
                    f,
                    "{doing} {name} at offset {offset} for {device}: {source}; {landed} bytes have landed"
                )
            }
            TransferError::UnexpectedEnd { name, offset, device, landed } => {
                let name = printable(name);
                write!(
                    f,
                    "{name} ends at or before offset {offset}, before the end of the requested range for {device}; \
                     {landed} bytes have landed; check the offset and the length"
                )
            }
            TransferError::Device { name, offset, address, source, landed } => {
                let name = printable(name);
                write!(
                    f,
                    "{source} (offset {offset} of {name}, address {address:#x}); {landed} bytes have landed"
                )
            }
            TransferError::Cancelled { landed } => {
                write!(f, "the transfer was cancelled; {landed} bytes have landed")
            }
            TransferError::Overlap { name, offset } => {
                write!(
                    f,
                    "two ranges of a batch write to offset {offset} of {}: write them one after the other",
                    printable(name)
                )
            }
            TransferError::OutOfRange { name, offset, bytes } => {
                write!(
                    f,
                    "invalid range of {bytes} bytes at offset {offset} of {}: a file ends before 2^63",
                    printable(name)
                )
            }
            TransferError::OtherDevice { device, address } => {
                write!(f, "{address:#x} is not memory of {device}: use a ring of the device that has it")
            }
            TransferError::Forked => {
                f.write_str("a forked child cannot use the rings of its parent: make a ring in the child")
            }
        }
    }
}

impl Error for TransferError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            TransferError::Io { source, .. } => Some(&**source),
            TransferError::Device { source, .. } => Some(source),
            _ => None,
        }
    }
}
