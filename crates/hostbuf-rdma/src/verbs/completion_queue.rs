//! A completion queue, and the channel by which the device tells that something has come.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

use ibverbs_sys as ffi;

use crate::error::{Error, Result};
use crate::os::lineage::Lineage;
use crate::register::Verbs;

/// How many completions are taken at a time.
const AT_ONCE: usize = 16;

/// See the [module](self).
pub(crate) struct Completions {
    queue: NonNull<ffi::ibv_cq>,
    channel: NonNull<ffi::ibv_comp_channel>,
    lineage: Lineage,
    // Behind the others: it keeps the device open.
    _verbs: Arc<Verbs>,
}

// SAFETY: verbs may be called by any thread, and by several at a time.
unsafe impl Send for Completions {}
// SAFETY: as above.
unsafe impl Sync for Completions {}

impl Completions {
    /// A queue with room for `room` completions at a time.
    ///
    /// # Errors
    /// [`Error::Os`].
    pub(crate) fn new(verbs: &Arc<Verbs>, room: u32) -> Result<Completions> {
        let context = verbs.context().as_ptr();
        let last = |doing: &'static str| Error::os(doing)(io::Error::last_os_error());
        // SAFETY: the context lives as long as the Verbs, which this keeps.
        let channel = NonNull::new(unsafe { ffi::ibv_create_comp_channel(context) })
            .ok_or_else(|| last("making a completion channel"))?;
        // SAFETY: as above; the channel is new.
        let queue = unsafe { ffi::ibv_create_cq(context, room as i32, null_mut(), channel.as_ptr(), 0) };
        let Some(queue) = NonNull::new(queue) else {
            let error = last("making a completion queue");
            // SAFETY: just made, and used by nobody.
            unsafe { ffi::ibv_destroy_comp_channel(channel.as_ptr()) };
            return Err(error);
        };
        let completions = Completions { queue, channel, lineage: Lineage::here(), _verbs: verbs.clone() };
        // An event that is not there must not make anybody wait: they are only ever taken after a poll.
        nix::fcntl::fcntl(completions.as_fd(), nix::fcntl::FcntlArg::F_SETFL(nix::fcntl::OFlag::O_NONBLOCK))
            .map_err(|e| Error::os("preparing a completion channel")(std::io::Error::from(e)))?;
        Ok(completions)
    }

    pub(crate) fn as_ptr(&self) -> *mut ffi::ibv_cq {
        self.queue.as_ptr()
    }

    /// Hands what has come to `each`; how many.
    ///
    /// # Errors
    /// [`Error::Os`]: the queue is broken.
    pub(crate) fn take(&self, mut each: impl FnMut(&ffi::ibv_wc)) -> Result<usize> {
        let mut all = 0;
        loop {
            let mut some = [ffi::ibv_wc::default(); AT_ONCE];
            // SAFETY: a queue that lives; it writes at most so many.
            let count = unsafe {
                let poll = (*self.queue.as_ref().context).ops.poll_cq.expect("every device has it");
                poll(self.queue.as_ptr(), AT_ONCE as i32, some.as_mut_ptr())
            };
            let Ok(count) = usize::try_from(count) else {
                return Err(Error::os("looking for completions")(io::Error::from_raw_os_error(libc::EIO)));
            };
            some[..count].iter().for_each(&mut each);
            all += count;
            if count < AT_ONCE {
                return Ok(all);
            }
        }
    }

    /// The next completion makes the channel readable. What has come before does not: look once more afterwards.
    ///
    /// # Errors
    /// [`Error::Os`].
    pub(crate) fn arm(&self) -> Result<()> {
        self.forget_events();
        // SAFETY: a queue that lives.
        let code = unsafe {
            let notify = (*self.queue.as_ref().context).ops.req_notify_cq.expect("every device has it");
            notify(self.queue.as_ptr(), 0)
        };
        match code {
            0 => Ok(()),
            code => Err(Error::os("asking for an event")(io::Error::from_raw_os_error(code))),
        }
    }

    fn forget_events(&self) {
        let (mut queue, mut context) = (null_mut(), null_mut());
        // SAFETY: both places are this function's; each event that came is acknowledged once.
        while unsafe { ffi::ibv_get_cq_event(self.channel.as_ptr(), &raw mut queue, &raw mut context) } == 0 {
            // SAFETY: the event's own queue, which is this one.
            unsafe { ffi::ibv_ack_cq_events(queue, 1) };
        }
    }
}

impl AsFd for Completions {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel's own descriptor, open as long as it lives.
        unsafe { BorrowedFd::borrow_raw(self.channel.as_ref().fd) }
    }
}

impl Drop for Completions {
    fn drop(&mut self) {
        if !self.lineage.is_here() {
            // The parent's.
            return;
        }
        // SAFETY: made by new; every pair that uses the queue holds this, so none is left. No event is without its
        // acknowledgement.
        let codes = unsafe {
            (ffi::ibv_destroy_cq(self.queue.as_ptr()), ffi::ibv_destroy_comp_channel(self.channel.as_ptr()))
        };
        if codes != (0, 0) {
            tracing::error!(?codes, fd = self.as_fd().as_raw_fd(), "a completion queue could not be ended");
        }
    }
}
