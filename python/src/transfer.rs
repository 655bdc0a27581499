//! Transfers between files and arrays.

use std::sync::Arc;
use std::time::Duration;

use hostbuf_staging::TransferError;
use pyo3::prelude::*;

use crate::pool_wait::ReadyQueue;
use crate::running_transfer::RunningTransfer;
use crate::transfer_array::release_left;
use crate::transfer_error::{forked, transfer_raised};

/// The time between two looks for signals, such as that of Ctrl-C.
const SLICE: Duration = Duration::from_millis(50);

/// A transfer between a file and an array.
#[pyclass(frozen, module = "hostbuf._hostbuf")]
pub struct TransferHandle {
    running: Arc<RunningTransfer>,
}

/// Waits for the end of a transfer without the interpreter's lock.
///
/// # Errors
/// The exception of a signal handler, such as KeyboardInterrupt.
pub fn wait_for_end(py: Python<'_>, running: &RunningTransfer) -> PyResult<()> {
    while !py.detach(|| running.wait_for_end(SLICE)) {
        py.check_signals()?;
    }
    Ok(())
}

/// Releases the array of a transfer that has ended. A GPU that is lost may access its memory for
/// ever.
fn release(py: Python<'_>, running: &RunningTransfer, result: &Result<u64, TransferError>) {
    if !matches!(result, Err(TransferError::Device { .. })) {
        running.kept.release(py);
    }
}

impl TransferHandle {
    pub fn new(running: Arc<RunningTransfer>) -> TransferHandle {
        TransferHandle { running }
    }

    /// Returns the transfer, unless it is one of the parent process.
    fn own(&self, py: Python<'_>) -> PyResult<&RunningTransfer> {
        if self.running.is_own() { Ok(&self.running) } else { Err(forked(py)) }
    }
}

#[pymethods]
impl TransferHandle {
    /// Waits until the transfer has ended, and returns the number of its bytes. An exception of a
    /// signal handler cancels it; the array is then free, unless a second one ends that wait too.
    fn get(&self, py: Python<'_>) -> PyResult<u64> {
        release_left(py);
        let running = self.own(py)?;
        if let Err(interrupt) = wait_for_end(py, running) {
            py.detach(|| running.cancel());
            wait_for_end(py, running)?;
            running.kept.release(py);
            return Err(interrupt);
        }
        let result = running.result();
        release(py, running, &result);
        result.map_err(|error| transfer_raised(py, &error))
    }

    /// Returns whether the transfer has ended, without waiting.
    fn done(&self, py: Python<'_>) -> PyResult<bool> {
        let running = self.own(py)?;
        let has_ended = running.has_ended();
        if has_ended {
            release(py, running, &running.transfer().wait());
        }
        Ok(has_ended)
    }

    /// Returns the number of bytes at the beginning of the transfer that have landed.
    fn landed(&self) -> u64 {
        self.running.transfer().landed()
    }

    /// Cancels the transfer, unless it has ended.
    fn cancel(&self, py: Python<'_>) {
        py.detach(|| self.running.cancel());
    }

    /// Wakes a loop at the end, or returns false if the transfer has ended.
    fn watch(&self, py: Python<'_>, queue: &ReadyQueue, number: u64) -> PyResult<bool> {
        Ok(self.own(py)?.wake_at_end(queue.waker(number)))
    }
}

impl Drop for TransferHandle {
    fn drop(&mut self) {
        if self.running.is_own() {
            self.running.abandon();
        }
    }
}
