//! Loading files of tensors into a buffer and to a GPU.

#![allow(unsafe_code, reason = "the functions are called by C, and call functions of the caller")]

use std::ffi::{c_char, c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr::null_mut;
use std::sync::{Arc, Mutex, PoisonError};

use ::hostbuf_load::{LoadError, SliceTarget, TensorTable};

use crate::buffer::hostbuf_buffer;
use crate::group::{group, hostbuf_collective};
use crate::load_error::load_error;
use crate::load_options::{hostbuf_load_options, load_options, load_paths};
use crate::pointers::{input, output};
use crate::pool_status::cuda_error;
use crate::slice::hostbuf_slice;
use crate::slice_copy::slice_target;
use crate::status::{CallError, CallResult, agree, argument, call, hostbuf_status, hostbuf_status as S};
use crate::stream_ordered_device::StreamOrderedDevice;
use crate::tensor_source::TensorSource;
use crate::tensors::hostbuf_tensors;

/// The places on a GPU of the tensors of a load, or of slices of them.
pub struct hostbuf_slice_targets {
    source: TensorSource,
    targets: Vec<SliceTarget>,
}

/// A function that chooses what a load copies to the GPU of its rank. The tensors are described,
/// but have no bytes yet: `hostbuf_tensor.address` is null. The function makes slices of them,
/// calls `hostbuf_slice_targets_add` for each, and frees them. It returns 0, or another number if
/// it has failed. It runs once, in a thread of the library, in which the GPU is current. Both
/// handles are valid until it returns. It must not throw exceptions or call `longjmp`.
pub type hostbuf_targets_function = Option<
    unsafe extern "C" fn(
        tensors: *const hostbuf_tensors,
        targets: *mut hostbuf_slice_targets,
        argument: *mut c_void,
    ) -> c_int,
>;

type TargetsFunction =
    unsafe extern "C" fn(*const hostbuf_tensors, *mut hostbuf_slice_targets, *mut c_void) -> c_int;

/// Adds a slice of the tensors of the same `hostbuf_targets_function`. The load copies it, packed,
/// to the address of the GPU, where memory of its size lies until `hostbuf_load_to_gpu` has
/// returned. The slice may be freed afterwards.
// Safety: the pointers are null or valid.
#[unsafe(no_mangle)]
pub extern "C" fn hostbuf_slice_targets_add(
    targets: Option<&mut hostbuf_slice_targets>,
    slice: Option<&hostbuf_slice>,
    address: u64,
) -> hostbuf_status {
    call(|| {
        let targets = targets.ok_or_else(|| argument("targets is null"))?;
        let own = input(slice, "slice")?;
        if !own.source.is_same(&targets.source) {
            return Err(argument("the slice is of other tensors: make it of those that the function got"));
        }
        targets.targets.push(slice_target(own, address, "address")?);
        Ok(())
    })
}

/// The caller's choice of the targets of a load.
struct TargetChoice<'d> {
    choose: TargetsFunction,
    argument: *mut c_void,
    gpu: &'d StreamOrderedDevice,
    failed: Mutex<Option<CallError>>,
}

// SAFETY: the function is called once, in any thread, as its documentation states.
unsafe impl Sync for TargetChoice<'_> {}

impl TargetChoice<'_> {
    fn targets(&self, table: &TensorTable) -> CallResult<Vec<SliceTarget>> {
        let source = TensorSource::Announced(Arc::new(table.clone()));
        let tensors = hostbuf_tensors::new(source.clone())?;
        let mut targets = hostbuf_slice_targets { source, targets: Vec::new() };
        let current = self.gpu.context().make_current().map_err(cuda_error)?;
        // SAFETY: the caller's function with the caller's argument.
        let code = unsafe { (self.choose)(&raw const tensors, &raw mut targets, self.argument) };
        drop(current);
        if code != 0 {
            let why =
                format!("the function for the targets returned {code}: the tensors are only in the buffer");
            return Err(CallError::Status(S::HOSTBUF_CANCELLED, why));
        }
        // The function may have allocated the memory in the order of the stream.
        self.gpu.wait_for_stream()?;
        Ok(targets.targets)
    }

    /// Chooses the targets. [`error`](TargetChoice::error) replaces the error of a failure.
    fn targets_of_load(&self, table: &TensorTable) -> Result<Vec<SliceTarget>, LoadError> {
        self.targets(table).map_err(|error| {
            *self.failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
            LoadError::Option { what: CHOICE_FAILED.to_owned() }
        })
    }

    /// Returns the error of a load that has failed.
    fn error(self, error: LoadError) -> CallError {
        let failed = self.failed.into_inner().unwrap_or_else(PoisonError::into_inner);
        match (&error, failed) {
            (LoadError::Option { what }, Some(failed)) if what == CHOICE_FAILED => failed,
            _ => load_error(error),
        }
    }
}

const CHOICE_FAILED: &str = "the function for the targets failed";

/// Loads files as `hostbuf_load` does, and copies the slices that `targets(tensors, .., argument)`
/// chooses in this rank to the GPU that has the number `gpu` in this process, each part as soon as
/// it has been read: the time is the longer one of reading and copying, not their sum. The copies
/// begin after the work that `stream` has when `targets` returns, a `CUstream` or `cudaStream_t` of
/// that GPU; null is the default stream. All have ended when the call returns. The GPU copies at
/// full speed if the buffer is registered with it (`hostbuf_register`). Collective; each rank may
/// choose other slices, and has a GPU of its own.
///
/// The results are those of `hostbuf_load`, in all ranks. If the load succeeds but the copies of
/// this rank fail, only this rank gets an error, and `hostbuf_tensors_open` finds the tensors:
/// `HOSTBUF_CANCELLED`: `targets` has failed. `HOSTBUF_GPU_FAILED`: the GPU could not copy.
/// `HOSTBUF_UNSUPPORTED`: there is no driver or no such GPU; nothing is loaded then.
// Safety: the pointers are null or valid, the stream exists, and the memory at each address has the
// bytes of its slice, and nothing else uses it meanwhile. The function may be called with the
// argument in another thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hostbuf_load_to_gpu(
    buffer: Option<&hostbuf_buffer>,
    group: *const hostbuf_collective,
    paths: *const *const c_char,
    count: usize,
    options: *const hostbuf_load_options,
    gpu: u32,
    stream: *mut c_void,
    targets: hostbuf_targets_function,
    argument: *mut c_void,
    to: Option<&mut MaybeUninit<*mut hostbuf_tensors>>,
) -> hostbuf_status {
    call(|| {
        let to = output(to, "to", null_mut());
        // SAFETY: by the contract of this function.
        let group = unsafe { self::group(group) }?;
        let ready = || {
            let (to, own) = (to?, input(buffer, "buffer")?);
            // SAFETY: by the contract of this function.
            let (paths, options) = unsafe { (load_paths(paths, count)?, load_options(options)?) };
            let choose = targets.ok_or_else(|| crate::status::argument("targets is null"))?;
            // SAFETY: by the contract of this function.
            Ok((to, own, paths, options, choose, unsafe { StreamOrderedDevice::open(gpu, stream) }?))
        };
        let (to, own, paths, options, choose, gpu) = agree(&*group, ready())?;
        let choice = TargetChoice { choose, argument, gpu: &gpu, failed: Mutex::new(None) };
        let targets = |table: &TensorTable| choice.targets_of_load(table);
        let loaded = options.load_to_device(&*group, &own.buffer, &paths, gpu.device(), &targets);
        hostbuf_tensors::give(loaded.map_err(|error| choice.error(error))?, to)
    })
}
