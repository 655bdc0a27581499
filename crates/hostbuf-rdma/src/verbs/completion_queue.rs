//! Completion queues.

#![allow(unsafe_code, reason = "libibverbs is called by foreign functions")]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

use ibverbs_sys as ffi;
use nix::fcntl::{FcntlArg, OFlag, fcntl};

use hostbuf::error::{Error, Result};
use hostbuf_os::fork_guard::ForkGuard;
use hostbuf_register::Verbs;

/// The maximum number of completions that one call of `ibv_poll_cq` returns.
const POLL_BATCH: usize = 16;

/// A completion queue (`ibv_cq`) with a completion channel, which becomes readable when the device
/// reports an event.
pub(crate) struct CompletionQueue {
    queue: NonNull<ffi::ibv_cq>,
    channel: NonNull<ffi::ibv_comp_channel>,
    fork_guard: ForkGuard,
    // Dropped last, since it keeps the device open.
    _verbs: Arc<Verbs>,
}

// SAFETY: any thread may call verbs, and several may at a time.
unsafe impl Send for CompletionQueue {}
// SAFETY: as above.
unsafe impl Sync for CompletionQueue {}

impl CompletionQueue {
    /// Creates a queue for at most `capacity` completions at a time.
    ///
    /// # Errors
    /// [`Error::Os`].
    pub(crate) fn new(verbs: &Arc<Verbs>, capacity: u32) -> Result<CompletionQueue> {
        let context = verbs.context().as_ptr().cast();
        let failed = |doing: &'static str| Error::os(doing)(io::Error::last_os_error());
        // SAFETY: the context exists as long as the Verbs, which the queue holds.
        let channel = NonNull::new(unsafe { ffi::ibv_create_comp_channel(context) })
            .ok_or_else(|| failed("creating a completion channel"))?;
        // SAFETY: as above; the channel was just created.
        let queue = unsafe { ffi::ibv_create_cq(context, capacity as i32, null_mut(), channel.as_ptr(), 0) };
        let Some(queue) = NonNull::new(queue) else {
            let error = failed("creating a completion queue");
            // SAFETY: the channel was just created, and nothing uses it.
            unsafe { ffi::ibv_destroy_comp_channel(channel.as_ptr()) };
            return Err(error);
        };
        let queue =
            CompletionQueue { queue, channel, fork_guard: ForkGuard::current(), _verbs: verbs.clone() };
        // Reading an event must not block if there is none.
        fcntl(queue.as_fd(), FcntlArg::F_SETFL(OFlag::O_NONBLOCK))
            .map_err(|e| Error::os("preparing a completion channel")(io::Error::from(e)))?;
        Ok(queue)
    }

    pub(crate) fn as_ptr(&self) -> *mut ffi::ibv_cq {
        self.queue.as_ptr()
    }

    /// Removes all completions from the queue, passes each to `each`, and returns their number.
    ///
    /// # Errors
    /// [`Error::Os`] if the device reports that the queue is unusable.
    #[doc(alias = "ibv_poll_cq")]
    pub(crate) fn poll(&self, mut each: impl FnMut(&ffi::ibv_wc)) -> Result<usize> {
        let mut total = 0;
        loop {
            let mut completions = [ffi::ibv_wc::default(); POLL_BATCH];
            // SAFETY: the queue exists; the call writes at most POLL_BATCH completions.
            let count = unsafe {
                let poll = (*self.queue.as_ref().context).ops.poll_cq.expect("every device has it");
                poll(self.queue.as_ptr(), POLL_BATCH as i32, completions.as_mut_ptr())
            };
            let Ok(count) = usize::try_from(count) else {
                return Err(Error::os("polling a completion queue")(io::Error::from_raw_os_error(libc::EIO)));
            };
            completions[..count].iter().for_each(&mut each);
            total += count;
            if count < POLL_BATCH {
                return Ok(total);
            }
        }
    }

    /// Requests an event for the next completion. Completions that are already in the queue cause
    /// no event, so the caller polls once more afterwards.
    ///
    /// # Errors
    /// [`Error::Os`].
    #[doc(alias = "ibv_req_notify_cq")]
    pub(crate) fn request_event(&self) -> Result<()> {
        self.acknowledge_events();
        // SAFETY: the queue exists.
        let code = unsafe {
            let notify = (*self.queue.as_ref().context).ops.req_notify_cq.expect("every device has it");
            notify(self.queue.as_ptr(), 0)
        };
        match code {
            0 => Ok(()),
            code => Err(Error::os("requesting a completion event")(io::Error::from_raw_os_error(code))),
        }
    }

    fn acknowledge_events(&self) {
        let (mut queue, mut context) = (null_mut(), null_mut());
        // SAFETY: both out-parameters are local; each event is acknowledged once.
        while unsafe { ffi::ibv_get_cq_event(self.channel.as_ptr(), &raw mut queue, &raw mut context) } == 0 {
            // SAFETY: the queue of the event, which is this one.
            unsafe { ffi::ibv_ack_cq_events(queue, 1) };
        }
    }
}

impl AsFd for CompletionQueue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor belongs to the channel, and is open as long as the channel exists.
        unsafe { BorrowedFd::borrow_raw(self.channel.as_ref().fd) }
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        if !self.fork_guard.is_current() {
            // It belongs to the parent process.
            return;
        }
        // SAFETY: created by `new`; every queue pair that uses the queue holds it, so none is left.
        // All events were acknowledged.
        let codes = unsafe {
            (ffi::ibv_destroy_cq(self.queue.as_ptr()), ffi::ibv_destroy_comp_channel(self.channel.as_ptr()))
        };
        if codes != (0, 0) {
            tracing::error!(?codes, fd = self.as_fd().as_raw_fd(), "cannot destroy a completion queue");
        }
    }
}
