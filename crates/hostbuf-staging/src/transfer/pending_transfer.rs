//! The handle of a transfer.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use hostbuf_os::fork_guard::ForkGuard;

use super::transfer_error::TransferError;
use super::transfer_state::TransferState;

/// A transfer in flight, or one that has ended. As a `Future` it returns what
/// [`wait`](Transfer::wait) returns, and no thread waits for it.
///
/// Dropping it cancels the transfer. The memory of both sides is kept until nothing accesses it any
/// more.
#[derive(Debug)]
#[must_use = "dropping a transfer cancels it"]
pub struct Transfer {
    state: Arc<TransferState>,
    fork_guard: ForkGuard,
}

impl Transfer {
    pub(crate) fn new(state: Arc<TransferState>) -> Transfer {
        Transfer { state, fork_guard: ForkGuard::current() }
    }

    fn check_process(&self) -> Result<(), TransferError> {
        if self.fork_guard.is_current() { Ok(()) } else { Err(TransferError::Forked) }
    }

    /// Waits until the transfer has ended, and returns the number of its bytes.
    ///
    /// # Errors
    /// [`TransferError`], with the number of bytes that have landed.
    pub fn wait(&self) -> Result<u64, TransferError> {
        self.check_process()?;
        self.state.wait()
    }

    /// Returns whether the transfer has ended, so that [`wait`](Transfer::wait) returns at once. In
    /// a forked child it returns true, and `wait` an error.
    #[must_use]
    pub fn test(&self) -> bool {
        self.check_process().is_err() || self.state.is_over()
    }

    /// Returns the number of bytes at the beginning of the transfer that have landed. It only
    /// grows.
    #[must_use]
    pub fn landed(&self) -> u64 {
        self.state.landed()
    }

    /// Cancels the transfer, unless it has ended. It ends as soon as what the device copies now has
    /// landed; [`wait`](Transfer::wait) waits for that.
    pub fn cancel(&self) {
        if self.check_process().is_ok() {
            self.state.stop(TransferError::Cancelled { landed: 0 });
        }
    }
}

impl Future for Transfer {
    type Output = Result<u64, TransferError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let Err(error) = self.check_process() {
            return Poll::Ready(Err(error));
        }
        self.state.poll(context.waker()).map_or(Poll::Pending, Poll::Ready)
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        self.cancel();
    }
}
