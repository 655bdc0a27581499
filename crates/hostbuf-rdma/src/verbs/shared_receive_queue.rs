//! Memory for messages that come: shared by all connections, so that it does not grow with them.

#![allow(unsafe_code)]

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::io;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

use ibverbs_sys as ffi;

use crate::error::{Error, Result};
use crate::os::lineage::Lineage;
use crate::rdma::verbs::completion_queue::Completions;
use crate::register::{Access, Registration, Span, Verbs};

/// Places of equal size, given to the device, filled by it, and given again: a *shared receive queue*.
pub(crate) struct Receives {
    queue: NonNull<ffi::ibv_srq>,
    completions: Completions,
    lineage: Lineage,
    // Before the memory.
    registration: Registration<Verbs>,
    memory: Memory,
    place: usize,
}

// SAFETY: verbs may be called by any thread, and by several at a time; a place is read by whoever got its completion.
unsafe impl Send for Receives {}
// SAFETY: as above.
unsafe impl Sync for Receives {}

struct Memory {
    at: NonNull<u8>,
    layout: Layout,
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout.
        unsafe { dealloc(self.at.as_ptr(), self.layout) };
    }
}

impl Receives {
    /// `count` places of `place` bytes, all given to the device.
    ///
    /// # Errors
    /// [`Error::Os`]; as registering.
    pub(crate) fn new(verbs: &Arc<Verbs>, count: u32, place: usize) -> Result<Receives> {
        let bytes = count as usize * place;
        let layout = Layout::from_size_align(bytes, crate::os::memory::page_size() as usize)
            .map_err(|_| Error::invalid(format!("{bytes} bytes for messages")))?;
        // SAFETY: the layout has bytes.
        let at = NonNull::new(unsafe { alloc_zeroed(layout) }).unwrap_or_else(|| handle_alloc_error(layout));
        let memory = Memory { at, layout };
        let registration = Registration::new(verbs, Span::new(at.as_ptr() as usize, bytes)?, Access::WRITE)?;
        let completions = Completions::new(verbs, count)?;
        let mut wanted = ffi::ibv_srq_init_attr {
            srq_context: null_mut(),
            attr: ffi::ibv_srq_attr { max_wr: count, max_sge: 1, srq_limit: 0 },
        };
        // SAFETY: the domain lives as long as the registration's registrar, which this holds.
        let queue = unsafe { ffi::ibv_create_srq(verbs.protection_domain().as_ptr(), &raw mut wanted) };
        let queue = NonNull::new(queue)
            .ok_or_else(|| Error::os("making a shared receive queue")(io::Error::last_os_error()))?;
        let receives = Receives { queue, completions, lineage: Lineage::here(), registration, memory, place };
        (0..u64::from(count)).try_for_each(|index| receives.give(index))?;
        Ok(receives)
    }

    pub(crate) fn as_ptr(&self) -> *mut ffi::ibv_srq {
        self.queue.as_ptr()
    }

    /// Where what has come is told.
    pub(crate) fn completions(&self) -> &Completions {
        &self.completions
    }

    /// Gives a place to the device (again).
    ///
    /// # Errors
    /// [`Error::Os`].
    pub(crate) fn give(&self, index: u64) -> Result<()> {
        let mut part = ffi::ibv_sge {
            addr: self.memory.at.as_ptr() as u64 + index * self.place as u64,
            length: self.place as u32,
            lkey: self.registration.handle().lkey(),
        };
        let mut wanted =
            ffi::ibv_recv_wr { wr_id: index, sg_list: &raw mut part, num_sge: 1, ..Default::default() };
        let mut bad = null_mut();
        // SAFETY: a queue that lives; the place is this one's, and the device's from here on.
        let code = unsafe {
            let post = (*self.queue.as_ref().context).ops.post_srq_recv.expect("it has such a queue");
            post(self.queue.as_ptr(), &raw mut wanted, &raw mut bad)
        };
        match code {
            0 => Ok(()),
            code => Err(Error::os("giving a place for a message")(io::Error::from_raw_os_error(code))),
        }
    }

    /// What came into a place.
    ///
    /// # Safety
    /// The completion of this place has come, with so many bytes, and it has not been given again.
    pub(crate) unsafe fn bytes(&self, index: u64, length: usize) -> &[u8] {
        assert!(length <= self.place && (index as usize + 1) * self.place <= self.memory.layout.size());
        // SAFETY: inside the memory; the device has done with it, by this function's contract.
        unsafe {
            std::slice::from_raw_parts(self.memory.at.as_ptr().add(index as usize * self.place), length)
        }
    }
}

impl Drop for Receives {
    fn drop(&mut self) {
        if !self.lineage.is_here() {
            // The parent's.
            return;
        }
        // SAFETY: made by new; every pair that uses it holds this, so none is left.
        let code = unsafe { ffi::ibv_destroy_srq(self.queue.as_ptr()) };
        if code != 0 {
            tracing::error!(code, "a shared receive queue could not be ended");
        }
    }
}
