//! The memory of a ring between files and devices.

#![allow(unsafe_code, reason = "implementations promise that the memory stays")]

use std::ptr::NonNull;

/// Host memory that a ring uses alone. It is registered with the device of the ring, if the device
/// needs that in order to copy at full speed.
///
/// # Safety
/// The address and the length never change, the memory is initialised, readable and writable, and
/// nobody else accesses it until the object is dropped. Memory that can be
/// [frozen](crate::own_ranges::Freezing) is an exception: it is writable until it is frozen.
pub unsafe trait RingMemory: Send + Sync + 'static {
    /// Returns the address of the first byte, a multiple of 4096.
    fn address(&self) -> NonNull<u8>;

    /// Returns the number of bytes.
    fn bytes(&self) -> usize;
}
