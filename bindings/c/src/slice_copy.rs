//! Copies of slices to a GPU.

#![allow(unsafe_code, reason = "the functions are called by C, with pointers of the caller")]

use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::sync::Arc;

use ::hostbuf_load::SliceTarget;
use hostbuf_staging::DeviceTarget;

use crate::load_error::load_error;
use crate::pointers::input;
use crate::slice::hostbuf_slice;
use crate::status::{CallResult, argument, call, hostbuf_status};
use crate::stream_ordered_device::StreamOrderedDevice;
use crate::transfer::CallerMemory;

/// Returns a slice with its place on a GPU; `name` is that of the address, for an error.
pub(crate) fn slice_target(own: &hostbuf_slice, address: u64, name: &str) -> CallResult<SliceTarget> {
    let bytes = own.slice.bytes;
    if address == 0 && bytes > 0 {
        return Err(argument(format!("{name} is 0")));
    }
    let memory = CallerMemory { address, bytes, is_host: false };
    let target = SliceTarget::new(&own.tensor, DeviceTarget::new(Arc::new(memory)));
    Ok(target.slice(own.slice.clone()))
}

/// Returns the slices of the caller, with their places on the GPU.
///
/// # Safety
/// The pointers are null, or arrays of `count` valid elements.
unsafe fn targets(
    slices: *const Option<&hostbuf_slice>,
    addresses: *const u64,
    count: usize,
) -> CallResult<Vec<(&hostbuf_slice, SliceTarget)>> {
    if slices.is_null() {
        return Err(argument("slices is null"));
    }
    if addresses.is_null() {
        return Err(argument("addresses is null"));
    }
    let target = |at: usize| {
        // SAFETY: by the contract of this function.
        let (slice, address) = unsafe { (*slices.add(at), *addresses.add(at)) };
        let own = input(slice, &format!("slices[{at}]"))?;
        Ok((own, slice_target(own, address, &format!("addresses[{at}]"))?))
    };
    (0..count).map(target).collect()
}

/// Copies `count` slices of the same tensors, packed, to the addresses of the GPU that has the
/// number `gpu` in this process, and waits for the end. The copies begin after the work that
/// `stream` has now, a `CUstream` or `cudaStream_t` of that GPU; null is the default stream. Sets
/// `bytes`, unless it is null, to the number of bytes. One call for many slices is faster than many
/// calls. The GPU copies at full speed if the buffer is registered with it (`hostbuf_register`).
///
/// `HOSTBUF_UNSUPPORTED`: there is no driver or no such GPU, or the driver has refused the stream.
/// `HOSTBUF_GPU_FAILED`: the GPU could not copy.
// Safety: the pointers are null or valid, the arrays have `count` elements, and the stream exists.
// The memory at each address has the bytes of its slice, and nothing else uses it meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hostbuf_slices_copy_gpu(
    slices: *const Option<&hostbuf_slice>,
    addresses: *const u64,
    count: usize,
    gpu: u32,
    stream: *mut c_void,
    bytes: Option<&mut MaybeUninit<u64>>,
) -> hostbuf_status {
    call(|| {
        let bytes = bytes.map(|bytes| bytes.write(0));
        if count == 0 {
            return Ok(());
        }
        // SAFETY: by the contract of this function.
        let targets = unsafe { targets(slices, addresses, count) }?;
        let Some((of, _)) = targets.first() else { return Ok(()) };
        let tensors = of.source.loaded()?.clone();
        if let Some(at) = targets.iter().position(|(slice, _)| !slice.source.is_same(&of.source)) {
            let why = "copy the slices of each handle of tensors by a call of their own";
            return Err(argument(format!("slices[{at}] and slices[0] are of different tensors: {why}")));
        }
        let targets: Vec<SliceTarget> = targets.into_iter().map(|(_, target)| target).collect();
        // SAFETY: by the contract of this function.
        let gpu = unsafe { StreamOrderedDevice::open(gpu, stream) }?;
        gpu.wait_for_stream()?;
        let copied = tensors.copy_to_device(gpu.device(), &targets).map_err(load_error)?;
        if let Some(bytes) = bytes {
            *bytes = copied;
        }
        Ok(())
    })
}
