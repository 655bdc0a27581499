//! The memory of a ring.

#![allow(unsafe_code, reason = "allocates memory with an alignment, and promises that it stays")]

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::fmt;
use std::ptr::NonNull;

/// The alignment that files without the page cache need.
pub(crate) const ALIGNMENT: usize = 4096;

/// Host memory that a ring uses alone. It is registered with the device of the ring, if the device
/// needs that in order to copy at full speed.
///
/// # Safety
/// The address and the length never change, the memory is readable and writable, and nobody else
/// accesses it until the object is dropped.
pub unsafe trait RingMemory: Send + Sync + 'static {
    /// Returns the address of the first byte, a multiple of 4096.
    fn address(&self) -> NonNull<u8>;

    /// Returns the number of bytes.
    fn bytes(&self) -> usize;
}

/// Ordinary host memory, for devices that need no registration.
pub struct HostMemory {
    address: NonNull<u8>,
    layout: Layout,
}

// SAFETY: nobody else has the memory.
unsafe impl Send for HostMemory {}
// SAFETY: a shared reference gives the address only.
unsafe impl Sync for HostMemory {}

impl HostMemory {
    /// Allocates `bytes` of zeros.
    ///
    /// # Panics
    /// If `bytes` is 0, or more than `isize::MAX`.
    #[must_use]
    pub fn new(bytes: usize) -> HostMemory {
        assert!(bytes > 0, "memory has at least one byte");
        let layout = Layout::from_size_align(bytes, ALIGNMENT).expect("an address space has these bytes");
        // SAFETY: the length is not zero.
        let address = NonNull::new(unsafe { alloc_zeroed(layout) });
        HostMemory { address: address.unwrap_or_else(|| handle_alloc_error(layout)), layout }
    }
}

// SAFETY: the memory is that of this object alone.
unsafe impl RingMemory for HostMemory {
    fn address(&self) -> NonNull<u8> {
        self.address
    }

    fn bytes(&self) -> usize {
        self.layout.size()
    }
}

impl Drop for HostMemory {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout.
        unsafe { dealloc(self.address.as_ptr(), self.layout) };
    }
}

impl fmt::Debug for HostMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostMemory").field("bytes", &self.layout.size()).finish_non_exhaustive()
    }
}

#[cfg(feature = "cuda")]
// SAFETY: the memory is that of this object alone.
unsafe impl RingMemory for hostbuf_cuda::PageLockedMemory {
    fn address(&self) -> NonNull<u8> {
        NonNull::new(self.as_ptr()).expect("the driver allocates memory at an address")
    }

    fn bytes(&self) -> usize {
        hostbuf_cuda::PageLockedMemory::bytes(self)
    }
}
