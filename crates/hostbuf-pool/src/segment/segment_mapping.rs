//! Mappings that forked children do not inherit.

use std::mem::ManuallyDrop;

use hostbuf_memory::FileMapping;
use hostbuf_os::fork_guard::ForkGuard;

/// A mapping of a file of a segment that forked children do not inherit.
#[derive(Debug)]
pub(super) struct SegmentMapping {
    mapping: ManuallyDrop<FileMapping>,
    fork_guard: ForkGuard,
}

impl SegmentMapping {
    /// Makes the object of a mapping that is excluded from forks.
    pub(super) fn new(mapping: FileMapping) -> SegmentMapping {
        SegmentMapping { mapping: ManuallyDrop::new(mapping), fork_guard: ForkGuard::current() }
    }

    /// Returns the address of the first byte.
    pub(super) fn start(&self) -> usize {
        self.mapping.start()
    }

    /// Returns the number of bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.mapping.len()
    }

    /// Returns whether this process has the mapping: a forked child has not.
    pub(super) fn is_mapped(&self) -> bool {
        self.fork_guard.is_current()
    }
}

impl Drop for SegmentMapping {
    #[allow(unsafe_code, reason = "drops a field once")]
    fn drop(&mut self) {
        // A forked child may have something else at these addresses.
        if self.is_mapped() {
            // SAFETY: it is not used afterwards.
            unsafe { ManuallyDrop::drop(&mut self.mapping) };
        }
    }
}
