//! Memory for incoming messages, shared by all connections, so that it does not grow with their
//! number.

#![allow(unsafe_code, reason = "a device writes memory that this file allocates and reads")]

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::io;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

use ibverbs_sys as ffi;

use crate::verbs::completion_queue::CompletionQueue;
use hostbuf::error::{Error, Result};
use hostbuf_os::fork_guard::ForkGuard;
use hostbuf_register::{Access, Registration, Span, Verbs};

/// The index of a slot of a shared receive queue, which is also the identifier of its completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReceiveSlot(pub(crate) u64);

/// A shared receive queue (`ibv_srq`) with slots of equal size. The device fills the slots that are
/// posted to it.
pub(crate) struct SharedReceiveQueue {
    queue: NonNull<ffi::ibv_srq>,
    completions: CompletionQueue,
    fork_guard: ForkGuard,
    // Dropped before the memory.
    registration: Registration<Verbs>,
    memory: SlotMemory,
    slot_bytes: usize,
}

// SAFETY: any thread may call verbs, and several may at a time; only the owner of a slot's
// completion reads the slot.
unsafe impl Send for SharedReceiveQueue {}
// SAFETY: as above.
unsafe impl Sync for SharedReceiveQueue {}

struct SlotMemory {
    start: NonNull<u8>,
    layout: Layout,
}

impl Drop for SlotMemory {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout.
        unsafe { dealloc(self.start.as_ptr(), self.layout) };
    }
}

impl SharedReceiveQueue {
    /// Creates a queue of `slots` slots of `slot_bytes` bytes, and posts all of them.
    ///
    /// # Errors
    /// [`Error::Os`], and the errors of [`Registration::new`].
    pub(crate) fn new(verbs: &Arc<Verbs>, slots: u32, slot_bytes: usize) -> Result<SharedReceiveQueue> {
        let bytes = slots as usize * slot_bytes;
        let layout = Layout::from_size_align(bytes, hostbuf_os::memory::page_size() as usize)
            .map_err(|_| Error::invalid(format!("cannot allocate {bytes} bytes for received messages")))?;
        // SAFETY: the layout is not empty.
        let start =
            NonNull::new(unsafe { alloc_zeroed(layout) }).unwrap_or_else(|| handle_alloc_error(layout));
        let memory = SlotMemory { start, layout };
        let span = Span::new(start.as_ptr() as usize, bytes)?;
        let registration = Registration::new(verbs, span, Access::WRITE)?;
        let completions = CompletionQueue::new(verbs, slots)?;
        let mut attributes = ffi::ibv_srq_init_attr {
            srq_context: null_mut(),
            attr: ffi::ibv_srq_attr { max_wr: slots, max_sge: 1, srq_limit: 0 },
        };
        // SAFETY: the protection domain exists as long as the registrar, which the registration
        // holds.
        let queue =
            unsafe { ffi::ibv_create_srq(verbs.protection_domain().as_ptr().cast(), &raw mut attributes) };
        let queue = NonNull::new(queue)
            .ok_or_else(|| Error::os("creating a shared receive queue")(io::Error::last_os_error()))?;
        let fork_guard = ForkGuard::current();
        let queue = SharedReceiveQueue { queue, completions, fork_guard, registration, memory, slot_bytes };
        (0..u64::from(slots)).try_for_each(|slot| queue.post(ReceiveSlot(slot)))?;
        Ok(queue)
    }

    pub(crate) fn as_ptr(&self) -> *mut ffi::ibv_srq {
        self.queue.as_ptr()
    }

    /// Returns the completion queue of all queue pairs that receive from this queue. The identifier
    /// of a completion is the slot.
    pub(crate) fn completions(&self) -> &CompletionQueue {
        &self.completions
    }

    /// Posts a slot, which the device fills with a later message.
    ///
    /// # Errors
    /// [`Error::Os`].
    #[doc(alias = "ibv_post_srq_recv")]
    pub(crate) fn post(&self, slot: ReceiveSlot) -> Result<()> {
        let mut segment = ffi::ibv_sge {
            addr: self.memory.start.as_ptr() as u64 + slot.0 * self.slot_bytes as u64,
            length: self.slot_bytes as u32,
            lkey: self.registration.handle().lkey(),
        };
        let mut request =
            ffi::ibv_recv_wr { wr_id: slot.0, sg_list: &raw mut segment, num_sge: 1, ..Default::default() };
        let mut bad = null_mut();
        // SAFETY: the queue exists; the slot belongs to this queue, and to the device from here on.
        let code = unsafe {
            let post = (*self.queue.as_ref().context).ops.post_srq_recv.expect("the device has such queues");
            post(self.queue.as_ptr(), &raw mut request, &raw mut bad)
        };
        match code {
            0 => Ok(()),
            code => Err(Error::os("posting a receive request")(io::Error::from_raw_os_error(code))),
        }
    }

    /// Returns the first `length` bytes of a slot.
    ///
    /// # Safety
    /// The slot's completion reported at least `length` bytes, and the slot was not posted since.
    pub(crate) unsafe fn bytes(&self, slot: ReceiveSlot, length: usize) -> &[u8] {
        let slot = slot.0 as usize;
        assert!(length <= self.slot_bytes && (slot + 1) * self.slot_bytes <= self.memory.layout.size());
        // SAFETY: inside the memory; the device is done with it, by the contract of this function.
        unsafe { std::slice::from_raw_parts(self.memory.start.as_ptr().add(slot * self.slot_bytes), length) }
    }
}

impl Drop for SharedReceiveQueue {
    fn drop(&mut self) {
        if !self.fork_guard.is_current() {
            // It belongs to the parent process.
            return;
        }
        // SAFETY: created by `new`; every queue pair that uses the queue holds it, so none is left.
        let code = unsafe { ffi::ibv_destroy_srq(self.queue.as_ptr()) };
        if code != 0 {
            tracing::error!(code, "cannot destroy a shared receive queue");
        }
    }
}
