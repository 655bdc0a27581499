//! The beginning of transfers after the work of a stream of a GPU.

use hostbuf_cuda::{BorrowedStream, CudaError, CudaEvent, DeferredCopies};

use super::staging_ring::Ring;
use crate::device::CudaDevice;

impl Ring<CudaDevice> {
    /// Lets the copies of all later transfers wait for the work that `stream` has now, and returns
    /// `true`, if that is possible. It costs less than [`read_after`](Ring::read_after).
    ///
    /// It is not possible while a stream of the process waits for a transfer of
    /// [`read_on`](Ring::read_on) or [`write_on`](Ring::write_on): the copies of that transfer
    /// might wait for themselves. Use `read_after` or `write_after` then, which also refuse a
    /// stream that is being captured.
    ///
    /// # Errors
    /// The driver's.
    pub fn try_wait_for(&self, stream: &BorrowedStream) -> Result<bool, CudaError> {
        // The copies would become a part of the graph.
        if stream.is_capturing()? {
            return Ok(false);
        }
        let event = CudaEvent::after(stream)?;
        // The order matters: what the event has recorded before waits for no word of later.
        if DeferredCopies::are_pending() {
            return Ok(false);
        }
        self.device().stream().wait(&event)?;
        Ok(true)
    }
}
