//! Memory of the driver as the memory of a ring.

#![allow(unsafe_code, reason = "promises that the memory stays")]

use std::ptr::NonNull;

use hostbuf_cuda::PageLockedMemory;

use crate::ring_memory::RingMemory;

// SAFETY: the memory is that of this object alone, and stays until it is dropped.
unsafe impl RingMemory for PageLockedMemory {
    fn address(&self) -> NonNull<u8> {
        NonNull::new(self.as_ptr()).expect("the driver allocates memory at an address")
    }

    fn bytes(&self) -> usize {
        PageLockedMemory::bytes(self)
    }
}
