//! The agreed address range of a job in this process.

#![allow(unsafe_code)]

use hostbuf_os::raw;
use hostbuf_protocol::wire::Winner;

/// The agreed range, as this process mapped it. Dropping this unmaps it.
#[derive(Debug)]
pub(crate) struct Mapping {
    address: usize,
    length: usize,
    /// Where the control page is, from the address, and its length.
    control: (usize, usize),
}

impl Mapping {
    /// # Safety
    /// The range must be wholly this process's, mapped for a job, and unmapped by nobody else.
    pub(crate) unsafe fn of(winner: &Winner) -> Mapping {
        Mapping {
            address: winner.address as usize,
            length: winner.length as usize,
            control: (winner.control as usize, winner.control_length as usize),
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        let (control, behind) = (self.address + self.control.0, self.control.0 + self.control.1);
        // SAFETY: by the contract of of(); handles borrow from the job that owns this, so no
        // reference is left to the buffers. A copy of an arena's handle may be: it finds a blank
        // control page, and an error.
        unsafe {
            let blanked = raw::blank(control, self.control.1);
            raw::unmap(self.address, self.control.0);
            raw::unmap(self.address + behind, self.length - behind);
            // Without room for a blank page the range goes whole; using a stale handle is then a
            // fault.
            if blanked.is_err() {
                raw::unmap(control, self.control.1);
            }
        }
    }
}
