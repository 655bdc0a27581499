//! The memory of a load.

#![allow(unsafe_code, reason = "declares that any thread may own the mapping")]

use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use hostbuf::HostBuffer;
use hostbuf_memory::FileMapping;

/// The memory of a load: a buffer, or its memory file before any rank has it. It stays mapped as
/// long as a clone exists.
#[derive(Clone)]
pub(crate) struct LoadMemory {
    start: NonNull<u8>,
    bytes: u64,
    _owner: Arc<dyn Send + Sync>,
}

// SAFETY: the mapping stays until the last clone is dropped, whatever thread owns it. This type
// does not access its bytes.
unsafe impl Send for LoadMemory {}
// SAFETY: as above.
unsafe impl Sync for LoadMemory {}

impl LoadMemory {
    /// Returns the memory of a buffer.
    pub(crate) fn of_buffer(buffer: &HostBuffer) -> LoadMemory {
        LoadMemory { start: buffer.as_ptr(), bytes: buffer.len() as u64, _owner: buffer.keepalive() }
    }

    /// Returns the memory of a mapping.
    pub(crate) fn of_mapping(mapping: FileMapping) -> LoadMemory {
        let start = NonNull::new(mapping.start() as *mut u8).unwrap_or(NonNull::dangling());
        LoadMemory { start, bytes: mapping.len(), _owner: Arc::new(mapping) }
    }

    /// Returns the address of the first byte.
    pub(crate) fn as_ptr(&self) -> NonNull<u8> {
        self.start
    }

    /// Returns the number of bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl fmt::Debug for LoadMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LoadMemory").field("start", &self.start).field("bytes", &self.bytes).finish()
    }
}
