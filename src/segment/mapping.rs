//! A mapping of a job's agreed address range in this process.

#![allow(unsafe_code, reason = "unmaps the range that it owns")]

use hostbuf_os::raw;
use hostbuf_protocol::range::AgreedRange;

/// A mapping of the agreed range. Dropping it unmaps the range.
#[derive(Debug)]
pub(crate) struct Mapping {
    address: usize,
    length: usize,
    /// The offset of the control page from the address, and its length.
    control: (usize, usize),
}

impl Mapping {
    /// Takes over the mapping of `range`.
    ///
    /// # Safety
    /// The whole range must belong to this process, be mapped for a job, and be unmapped by nothing
    /// else.
    pub(crate) unsafe fn new(range: &AgreedRange<'_>) -> Mapping {
        Mapping {
            address: range.address as usize,
            length: range.length as usize,
            control: (range.control.offset as usize, range.control.length as usize),
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        let (control, behind) = (self.address + self.control.0, self.control.0 + self.control.1);
        // SAFETY: by the contract of new(). Handles borrow from the job that owns the mapping, so
        // there are no references to the buffers. A copy of an arena's handle may exist: it finds a
        // zeroed control page, and returns an error.
        unsafe {
            let blanked = raw::map_zeroes(control, self.control.1);
            raw::unmap(self.address, self.control.0);
            raw::unmap(self.address + behind, self.length - behind);
            // Without memory for a zeroed page the whole range is unmapped, and the use of a stale
            // handle faults.
            if blanked.is_err() {
                raw::unmap(control, self.control.1);
            }
        }
    }
}
