//! Transfers between files and memory.

#![allow(unsafe_code, reason = "the functions are called by C, with pointers of the caller")]

use std::any::Any;
use std::mem::MaybeUninit;
use std::sync::Arc;

use hostbuf_os::fork_guard::ForkGuard;
use hostbuf_staging::{DeviceBuffer, Transfer, TransferError};

use crate::pointers::input;
use crate::status::{CallError, CallResult, call, hostbuf_status, hostbuf_status as S};

/// A transfer between a file and memory of the host or of a GPU.
pub struct hostbuf_transfer {
    transfer: Transfer,
    /// Dropped after the transfer.
    _ring: Arc<dyn Any + Send + Sync>,
    process: ForkGuard,
}

impl hostbuf_transfer {
    pub(crate) fn new(transfer: Transfer, ring: Arc<dyn Any + Send + Sync>) -> hostbuf_transfer {
        hostbuf_transfer { transfer, _ring: ring, process: ForkGuard::current() }
    }
}

/// Memory of the caller, which leaves it alone until the transfer has ended.
pub(crate) struct CallerMemory {
    pub(crate) address: u64,
    pub(crate) bytes: u64,
    /// False for memory of a GPU.
    pub(crate) is_host: bool,
}

// SAFETY: the caller keeps the memory until the transfer has ended, as the header demands.
unsafe impl DeviceBuffer for CallerMemory {
    fn address(&self) -> u64 {
        self.address
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn is_host_memory(&self) -> bool {
        self.is_host
    }
}

pub(crate) fn transfer_error(error: &TransferError) -> CallError {
    let status = match error {
        TransferError::Io { .. } => S::HOSTBUF_OS,
        TransferError::UnexpectedEnd { .. } => S::HOSTBUF_END_OF_FILE,
        TransferError::Device { .. } => S::HOSTBUF_GPU_FAILED,
        TransferError::Cancelled { .. } => S::HOSTBUF_CANCELLED,
        TransferError::Overlap { .. }
        | TransferError::OutOfRange { .. }
        | TransferError::OtherDevice { .. } => S::HOSTBUF_INVALID,
        TransferError::Forked => S::HOSTBUF_FORKED,
        _ => S::HOSTBUF_DEFECT,
    };
    CallError::Status(status, error.to_string())
}

/// Waits for the end, and writes the number of bytes.
fn result(transfer: &hostbuf_transfer, bytes: Option<&mut MaybeUninit<u64>>) -> CallResult<()> {
    let ended = transfer.transfer.wait();
    if let Some(bytes) = bytes {
        bytes.write(transfer.transfer.landed());
    }
    ended.map(|_| ()).map_err(|error| transfer_error(&error))
}

/// Waits until a transfer has ended, and sets `bytes`, unless it is null, to the number of bytes at
/// its beginning that have landed. If it has failed, the rest of the memory, or of the range of the
/// file, has indeterminate contents. The result is the same each time.
///
/// `HOSTBUF_END_OF_FILE`: the file ends before the end of the transfer. `HOSTBUF_CANCELLED`: the
/// transfer was cancelled. `HOSTBUF_OS`: the file could not be read or written.
/// `HOSTBUF_GPU_FAILED`: the GPU could not copy.
// Safety: the pointers are null or valid.
#[unsafe(no_mangle)]
pub extern "C" fn hostbuf_transfer_wait(
    transfer: Option<&hostbuf_transfer>,
    bytes: Option<&mut MaybeUninit<u64>>,
) -> hostbuf_status {
    call(|| result(input(transfer, "transfer")?, bytes))
}

/// Returns the result of a transfer as `hostbuf_transfer_wait`, or `HOSTBUF_NOTHING` if it has not
/// ended yet. It does not wait.
// Safety: the pointers are null or valid.
#[unsafe(no_mangle)]
pub extern "C" fn hostbuf_transfer_test(
    transfer: Option<&hostbuf_transfer>,
    bytes: Option<&mut MaybeUninit<u64>>,
) -> hostbuf_status {
    call(|| {
        let transfer = input(transfer, "transfer")?;
        if transfer.process.is_current() && !transfer.transfer.test() {
            return Err(CallError::Nothing("the transfer has not ended".into()));
        }
        result(transfer, bytes)
    })
}

/// Returns the number of bytes at the beginning of a transfer that have landed, which only grows,
/// or 0 if it is null.
// Safety: `transfer` is null or a live handle.
#[unsafe(no_mangle)]
pub extern "C" fn hostbuf_transfer_landed(transfer: Option<&hostbuf_transfer>) -> u64 {
    transfer.map_or(0, |transfer| transfer.transfer.landed())
}

/// Cancels a transfer, unless it has ended. It does not wait: the memory is in use until
/// `hostbuf_transfer_wait` has returned. A null transfer is ignored.
// Safety: `transfer` is null or a live handle.
#[unsafe(no_mangle)]
pub extern "C" fn hostbuf_transfer_cancel(transfer: Option<&hostbuf_transfer>) {
    call(|| {
        if let Some(transfer) = transfer {
            transfer.transfer.cancel();
        }
        Ok(())
    });
}

/// Frees a transfer. One that has not ended is cancelled first, and this waits until nothing
/// accesses its memory. A null transfer is ignored.
// Safety: `transfer` is null or a live handle. It is not used again.
#[unsafe(no_mangle)]
pub extern "C" fn hostbuf_transfer_free(transfer: Option<Box<hostbuf_transfer>>) {
    call(|| {
        if let Some(transfer) = &transfer {
            transfer.transfer.cancel();
            // The result does not matter any more. In a forked child there is nothing to wait for.
            let _ = transfer.transfer.wait();
        }
        drop(transfer);
        Ok(())
    });
}
