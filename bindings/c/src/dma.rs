//! Devices that read blocks.

#![allow(unsafe_code, reason = "the functions are called by C, with pointers of the caller")]

use std::ffi::{c_char, c_int, c_void};
use std::io;
use std::mem::MaybeUninit;
use std::time::Duration;

use ::hostbuf_pool::{Completion, CopyReason, DmaPath, Pool, PoolError};
use library::register::DeviceName;

use crate::block_ref::hostbuf_block_ref;
use crate::pointers::{input, output};
use crate::pool::optional_text;
use crate::pool_status::pool_error;
use crate::status::{CallError, argument, call, hostbuf_status};

/// A function of the program that returns 0 while an operation of a device is in progress, and
/// another number once it has completed or failed. It does not wait. A thread of hostbuf calls it.
pub type hostbuf_completion_function = Option<unsafe extern "C" fn(argument: *mut c_void) -> c_int>;

/// Writes the address at which a device reads the content while the block is held. `device` is
/// `"cuda"`, `"cuda:1"` or another name as for `hostbuf_device_open`; null means `"cuda"`. The
/// first call for a producer registers all of its blocks; no driver is loaded before.
///
/// `HOSTBUF_UNSUPPORTED`: the device cannot read the block, for the reason in the message, and the
/// program copies the content.
// Safety: the pointers are null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hostbuf_block_ref_dma(
    block: Option<&hostbuf_block_ref>,
    device: *const c_char,
    address: Option<&mut MaybeUninit<u64>>,
) -> hostbuf_status {
    call(|| {
        let address = output(address, "address", 0)?;
        let block = input(block, "block")?;
        // SAFETY: by the contract of this function.
        let device = unsafe { optional_text(device, "device") }?.unwrap_or("cuda");
        let device: DeviceName = device.parse()?;
        match block.held.dma(&device) {
            DmaPath::Direct(found) => *address = found,
            DmaPath::Copy(CopyReason::Forked) => return Err(pool_error(PoolError::Forked)),
            DmaPath::Copy(why) => {
                return Err(CallError::Status(hostbuf_status::HOSTBUF_UNSUPPORTED, why.to_string()));
            }
        }
        Ok(())
    })
}

/// A completion that a function of the program reports.
struct ReportedCompletion {
    is_complete: unsafe extern "C" fn(*mut c_void) -> c_int,
    argument: *mut c_void,
    /// The connection, which is kept as long as the hold: a broker ends the holds of a client that
    /// has disconnected.
    _pool: Pool,
}

// SAFETY: the program lets another thread call its function with the argument.
unsafe impl Send for ReportedCompletion {}

impl Completion for ReportedCompletion {
    fn is_complete(&self) -> io::Result<bool> {
        // SAFETY: the program keeps both valid until the function has returned another number.
        Ok(unsafe { (self.is_complete)(self.argument) } != 0)
    }

    fn wait(&self) -> io::Result<()> {
        while !self.is_complete()? {
            std::thread::sleep(Duration::from_micros(100));
        }
        Ok(())
    }
}

/// Releases a hold when an operation of a device has completed, such as a copy of the content, and
/// sets `*block` to null. It does not wait: a thread calls `is_complete(argument)` about every
/// millisecond until the result is not 0, for example `cuEventQuery(event) !=
/// CUDA_ERROR_NOT_READY`.
// Safety: the pointers are null or valid; the function may be called in any thread with the
// argument until it has returned a number other than 0.
#[unsafe(no_mangle)]
pub extern "C" fn hostbuf_block_ref_release_after(
    block: Option<&mut Option<Box<hostbuf_block_ref>>>,
    is_complete: hostbuf_completion_function,
    argument: *mut c_void,
) -> hostbuf_status {
    call(|| {
        let is_complete = is_complete.ok_or_else(|| self::argument("is_complete is null"))?;
        let place = block.ok_or_else(|| self::argument("block is null"))?;
        let held = place.as_ref().ok_or_else(|| self::argument("*block is null: it is released"))?;
        if !held.held.is_mapped() {
            return Err(pool_error(PoolError::Forked));
        }
        let Some(block) = place.take() else { return Ok(()) };
        let hostbuf_block_ref { held, pool } = *block;
        held.release_after(ReportedCompletion { is_complete, argument, _pool: pool });
        Ok(())
    })
}
