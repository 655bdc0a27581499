//! Memory of rings and transfers that is counted.

#![allow(unsafe_code, reason = "promises that memory stays, and looks at it after the transfers")]

use std::ptr::NonNull;
use std::sync::Arc;

use hostbuf::register::{Access, Error, Registration, Span};
use hostbuf_staging::{DeviceBuffer, HostMemory, RingMemory};

use crate::counted_locks::CountedLocks;

/// Memory of a ring, or of a transfer. The count of its token shows whether it still exists.
pub(crate) struct CountedMemory {
    /// Ended before the memory.
    registration: Option<Registration<CountedLocks>>,
    memory: HostMemory,
    is_host: bool,
    _token: Arc<()>,
}

impl CountedMemory {
    /// Allocates `bytes` of zeros. `is_host` states whether the device of the ring is the host.
    pub(crate) fn new(bytes: usize, is_host: bool, token: &Arc<()>) -> CountedMemory {
        let memory = HostMemory::new(bytes);
        CountedMemory { registration: None, memory, is_host, _token: token.clone() }
    }

    /// Registers the memory until it is dropped.
    ///
    /// # Errors
    /// The registrar's.
    pub(crate) fn registered(mut self, locks: &Arc<CountedLocks>) -> Result<CountedMemory, Error> {
        let span = Span::new(RingMemory::address(&self).as_ptr() as usize, RingMemory::bytes(&self))?;
        self.registration = Some(Registration::new(locks, span, Access::WRITE)?);
        Ok(self)
    }

    /// Returns a copy of the first bytes. No transfer uses the memory meanwhile.
    pub(crate) fn content(&self, bytes: usize) -> Vec<u8> {
        assert!(bytes <= RingMemory::bytes(self), "the memory has so many bytes");
        // SAFETY: allocated with at least this length, and the caller has ended the transfer.
        unsafe { std::slice::from_raw_parts(RingMemory::address(self).as_ptr(), bytes) }.to_vec()
    }

    /// Sets the content. No transfer uses the memory meanwhile.
    pub(crate) fn fill(&self, content: &[u8]) {
        assert_eq!(content.len(), RingMemory::bytes(self), "a content has the length of the memory");
        let to = RingMemory::address(self).as_ptr();
        // SAFETY: as above.
        unsafe { to.copy_from_nonoverlapping(content.as_ptr(), content.len()) };
    }
}

// SAFETY: the memory is that of this object alone.
unsafe impl RingMemory for CountedMemory {
    fn address(&self) -> NonNull<u8> {
        self.memory.address()
    }

    fn bytes(&self) -> usize {
        self.memory.bytes()
    }
}

// SAFETY: the memory stays as long as the object, and each transfer has memory of its own.
unsafe impl DeviceBuffer for CountedMemory {
    fn address(&self) -> u64 {
        self.memory.address().as_ptr() as u64
    }

    fn bytes(&self) -> u64 {
        self.memory.bytes() as u64
    }

    fn is_host_memory(&self) -> bool {
        self.is_host
    }
}
