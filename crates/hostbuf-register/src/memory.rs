//! Memory that a device can register: host memory, a dma-buf, or memory of a device.

use std::fmt;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use crate::span::Span;

/// Memory to be registered with a device.
///
/// All registrars register host memory. [`RegistrarProperties`](crate::RegistrarProperties) states
/// which other kinds a registrar supports; for the rest it returns
/// [`Error::Unsupported`](crate::Error::Unsupported).
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Memory {
    /// A range of addresses of this process.
    Host(Span),
    /// A part of a dma-buf, for example of GPU memory that its driver has exported.
    DmaBuf(DmaBuf),
    /// A range of addresses of a device.
    Device(DeviceRange),
}

/// A part of a dma-buf, and the address by which requests to the device name its first byte.
///
/// It owns a reference to the descriptor, which stays open while a registration of it lives.
#[derive(Clone, Debug)]
#[doc(alias = "ibv_reg_dmabuf_mr")]
pub struct DmaBuf {
    descriptor: Arc<OwnedFd>,
    offset: u64,
    length: usize,
    iova: u64,
}

/// A range of addresses of a device, such as a GPU, that is not mapped in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceRange {
    address: u64,
    length: usize,
}

impl DmaBuf {
    /// Describes the bytes `part` of a dma-buf, which requests to the device address from `iova`
    /// (I/O virtual address) on.
    ///
    /// # Errors
    /// [`InvalidMemory`] if the part is empty, or if it or its addresses wrap around.
    pub fn new(
        descriptor: impl Into<Arc<OwnedFd>>,
        part: Range<u64>,
        iova: u64,
    ) -> Result<DmaBuf, InvalidMemory> {
        let length = part.end.checked_sub(part.start).and_then(|length| usize::try_from(length).ok());
        match length.filter(|length| *length > 0 && iova.checked_add(*length as u64).is_some()) {
            Some(length) => Ok(DmaBuf { descriptor: descriptor.into(), offset: part.start, length, iova }),
            None => {
                let (start, end) = (part.start, part.end);
                Err(InvalidMemory(format!(
                    "{start:#x}..{end:#x} at iova {iova:#x} is not a part of a dma-buf"
                )))
            }
        }
    }

    /// Returns the descriptor of the dma-buf.
    #[must_use]
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }

    /// Returns the offset of the first byte in the dma-buf.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Returns the number of bytes.
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "a part has at least one byte")]
    pub fn len(&self) -> usize {
        self.length
    }

    /// Returns the address by which requests to the device name the first byte.
    #[must_use]
    pub fn iova(&self) -> u64 {
        self.iova
    }
}

impl PartialEq for DmaBuf {
    fn eq(&self, other: &DmaBuf) -> bool {
        let fields = |one: &DmaBuf| (one.descriptor.as_raw_fd(), one.offset, one.length, one.iova);
        fields(self) == fields(other)
    }
}

impl DeviceRange {
    /// Describes `length` bytes from `address` of a device.
    ///
    /// # Errors
    /// [`InvalidMemory`] for no bytes, and for an end beyond the address space.
    pub fn new(address: u64, length: usize) -> Result<DeviceRange, InvalidMemory> {
        if length == 0 || address.checked_add(length as u64).is_none() {
            return Err(InvalidMemory(format!(
                "{length} bytes from {address:#x} are not memory of a device"
            )));
        }
        Ok(DeviceRange { address, length })
    }

    /// Returns the first address.
    #[must_use]
    pub fn address(self) -> u64 {
        self.address
    }

    /// Returns the number of bytes.
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "a range has at least one byte")]
    pub fn len(self) -> usize {
        self.length
    }
}

/// The error for a part of a dma-buf, or a range of a device, that cannot exist. It contains the
/// operands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidMemory(String);

impl fmt::Display for InvalidMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for InvalidMemory {}

impl Memory {
    /// Returns the number of bytes.
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "memory to be registered has at least one byte")]
    #[inline]
    pub fn len(&self) -> usize {
        match self {
            Memory::Host(span) => span.len(),
            Memory::DmaBuf(part) => part.length,
            Memory::Device(range) => range.length,
        }
    }

    /// Returns the range of host memory, or `None` for memory of another kind.
    #[must_use]
    #[inline]
    pub fn as_host(&self) -> Option<Span> {
        match self {
            Memory::Host(span) => Some(*span),
            _ => None,
        }
    }
}

impl From<Span> for Memory {
    #[inline]
    fn from(span: Span) -> Memory {
        Memory::Host(span)
    }
}

impl From<DmaBuf> for Memory {
    fn from(part: DmaBuf) -> Memory {
        Memory::DmaBuf(part)
    }
}

impl From<DeviceRange> for Memory {
    fn from(range: DeviceRange) -> Memory {
        Memory::Device(range)
    }
}

impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Memory::Host(span) => span.fmt(f),
            Memory::DmaBuf(part) => {
                let (fd, start) = (part.descriptor.as_raw_fd(), part.offset);
                let end = start + part.length as u64;
                write!(f, "{start:#x}-{end:#x} of the dma-buf with descriptor {fd}")
            }
            Memory::Device(range) => {
                let end = range.address + range.length as u64;
                write!(f, "{:#x}-{end:#x} of a device", range.address)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn descriptor() -> Arc<OwnedFd> {
        Arc::new(std::fs::File::open("/proc/self/status").expect("a file").into())
    }

    #[test]
    fn a_part_of_a_dma_buf_has_bytes_and_does_not_wrap_around() {
        let fd = descriptor();
        let part = DmaBuf::new(fd.clone(), 4096..8192, 0x7000).unwrap();
        assert_eq!((part.offset(), part.len(), part.iova()), (4096, 4096, 0x7000));
        assert_eq!(part.descriptor().as_raw_fd(), fd.as_raw_fd());
        assert_eq!(Memory::from(part.clone()), Memory::DmaBuf(part));
        let backwards = Range { start: 2, end: 1 };
        for (part, iova) in [(0..0, 0), (backwards, 0), (0..2, u64::MAX - 1)] {
            assert!(
                DmaBuf::new(fd.clone(), part, iova)
                    .unwrap_err()
                    .to_string()
                    .contains("not a part of a dma-buf")
            );
        }
        assert!(DeviceRange::new(1, 0).is_err() && DeviceRange::new(u64::MAX, 1).is_err());
    }
}
