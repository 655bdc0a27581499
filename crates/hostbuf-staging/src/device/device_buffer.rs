//! Memory of a device that transfers write to or read.

#![allow(unsafe_code, reason = "an unsafe trait promises that an address stays valid")]

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// Memory of a device. It stays allocated as long as the object exists.
///
/// # Safety
/// The address and the length never change, and the memory belongs to nobody else until the object
/// is dropped.
pub unsafe trait DeviceBuffer: Send + Sync + 'static {
    /// Returns the device's address of the first byte.
    fn address(&self) -> u64;

    /// Returns the number of bytes.
    fn bytes(&self) -> u64;

    /// Returns whether the address is one of this process that its threads may read and write. If
    /// so, no two transfers access the same bytes at a time, unless both write to sinks.
    fn is_host_memory(&self) -> bool {
        false
    }
}

/// A part of the memory of a device, which a transfer keeps until it has ended.
#[derive(Clone)]
pub struct DeviceTarget {
    range: Arc<dyn DeviceBuffer>,
    offset: u64,
    bytes: u64,
}

impl DeviceTarget {
    /// Makes a target of all of `range`.
    pub fn new(range: Arc<dyn DeviceBuffer>) -> DeviceTarget {
        let bytes = range.bytes();
        DeviceTarget { range, offset: 0, bytes }
    }

    /// Returns a part of this target; `part` is in bytes.
    ///
    /// # Errors
    /// [`InvalidTarget`] if it does not lie within this target.
    pub fn part(&self, part: Range<u64>) -> Result<DeviceTarget, InvalidTarget> {
        if part.start > part.end || part.end > self.bytes {
            return Err(InvalidTarget { part, bytes: self.bytes });
        }
        let (offset, bytes) = (self.offset + part.start, part.end - part.start);
        Ok(DeviceTarget { range: self.range.clone(), offset, bytes })
    }

    /// Returns the device's address of the first byte.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.range.address() + self.offset
    }

    /// Returns the number of bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns whether the threads of this process may access the memory:
    /// [`DeviceBuffer::is_host_memory`].
    #[must_use]
    pub fn is_host_memory(&self) -> bool {
        self.range.is_host_memory()
    }
}

impl fmt::Debug for DeviceTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (address, bytes) = (self.address(), self.bytes);
        f.debug_struct("DeviceTarget").field("address", &address).field("bytes", &bytes).finish()
    }
}

/// A part that does not lie within the memory of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct InvalidTarget {
    /// The requested part, in bytes.
    pub part: Range<u64>,
    /// The number of bytes that there are.
    pub bytes: u64,
}

impl fmt::Display for InvalidTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let InvalidTarget { part: Range { start, end }, bytes } = self;
        write!(f, "invalid part {start}..{end} of the memory of a device: it has {bytes} bytes")
    }
}

impl std::error::Error for InvalidTarget {}
