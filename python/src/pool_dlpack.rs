//! DLPack: the exchange of arrays between libraries, by capsules.

#![allow(unsafe_code, reason = "a capsule is a pointer to a structure of C")]

use std::any::Any;
use std::ffi::{CStr, c_void};
use std::ptr::null_mut;

use hostbuf_pool::ArrayLayout;
use pyo3::ffi;
use pyo3::prelude::*;

use crate::pool_owner::{ViewOwner, exported};

const CPU: i32 = 1;
const CUDA_HOST: i32 = 3;
#[cfg(feature = "cuda")]
const CUDA: i32 = 2;
/// The version of the structures, whose element types include numbers of 8 bits.
const VERSION: [u32; 2] = [1, 1];
const READ_ONLY: u64 = 1;
const IS_COPIED: u64 = 2;

/// `DLTensor`.
#[repr(C)]
struct TensorView {
    data: *mut c_void,
    device_type: i32,
    device_id: i32,
    dimensions: i32,
    code: u8,
    bits: u8,
    lanes: u16,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

/// `DLManagedTensor`.
#[repr(C)]
struct LegacyTensor {
    tensor: TensorView,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut LegacyTensor)>,
}

/// `DLManagedTensorVersioned`.
#[repr(C)]
struct VersionedTensor {
    version: [u32; 2],
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut VersionedTensor)>,
    flags: u64,
    tensor: TensorView,
}

/// The memory of an array.
pub struct TensorMemory {
    address: u64,
    /// The kind and the number of the device.
    device: (i32, i32),
    flags: u64,
    /// The object that keeps the memory.
    owner: Box<dyn Any + Send>,
}

impl From<ViewOwner> for TensorMemory {
    fn from(owner: ViewOwner) -> TensorMemory {
        let flags = match &owner {
            ViewOwner::Held(_) => READ_ONLY,
            ViewOwner::Copy(_) => IS_COPIED,
            ViewOwner::Writable(_) => 0,
        };
        let address = owner.address() as u64;
        TensorMemory { address, device: (CPU, 0), flags, owner: Box::new(owner) }
    }
}

impl TensorMemory {
    /// Describes the same memory of the host as registered with a GPU.
    pub fn pinned(self) -> TensorMemory {
        TensorMemory { device: (CUDA_HOST, 0), ..self }
    }
}

#[cfg(feature = "cuda")]
impl TensorMemory {
    /// Describes memory of a GPU that `owner` keeps.
    pub fn on_gpu(address: u64, gpu: u32, is_read_only: bool, owner: Box<dyn Any + Send>) -> TensorMemory {
        let flags = if is_read_only { READ_ONLY } else { 0 };
        TensorMemory { address, device: (CUDA, gpu as i32), flags, owner }
    }
}

/// A structure of DLPack and what it refers to.
struct Exported<T> {
    managed: T,
    _shape: Box<[i64]>,
    _strides: Box<[i64]>,
    _owner: Box<dyn Any + Send>,
}

/// A structure that a capsule passes to its consumer.
trait Managed: Sized {
    const NAME: &'static CStr;

    fn new(tensor: TensorView, flags: u64) -> Self;

    /// Sets the pointer by which the structure is freed.
    fn set_context(&mut self, context: *mut c_void);

    /// Returns the pointer by which the structure is freed.
    fn context(&self) -> *mut c_void;
}

impl Managed for LegacyTensor {
    const NAME: &'static CStr = c"dltensor";

    fn new(tensor: TensorView, _: u64) -> LegacyTensor {
        LegacyTensor { tensor, context: null_mut(), deleter: Some(delete::<LegacyTensor>) }
    }

    fn set_context(&mut self, context: *mut c_void) {
        self.context = context;
    }

    fn context(&self) -> *mut c_void {
        self.context
    }
}

impl Managed for VersionedTensor {
    const NAME: &'static CStr = c"dltensor_versioned";

    fn new(tensor: TensorView, flags: u64) -> VersionedTensor {
        let deleter = Some(delete::<VersionedTensor> as unsafe extern "C" fn(*mut VersionedTensor));
        VersionedTensor { version: VERSION, context: null_mut(), deleter, flags, tensor }
    }

    fn set_context(&mut self, context: *mut c_void) {
        self.context = context;
    }

    fn context(&self) -> *mut c_void {
        self.context
    }
}

/// Frees a structure. A consumer may call it in any thread, without the interpreter's lock.
unsafe extern "C" fn delete<T: Managed>(managed: *mut T) {
    // SAFETY: `capsule` has set the context, and a structure is freed once.
    unsafe { drop(Box::from_raw((*managed).context().cast::<Exported<T>>())) };
}

/// Frees the structure of a capsule that no consumer has taken.
unsafe extern "C" fn end<T: Managed>(object: *mut ffi::PyObject) {
    // SAFETY: the interpreter calls this with its lock for a capsule that is ending. A consumer
    // renames a capsule whose structure it has taken.
    unsafe {
        if ffi::PyCapsule_IsValid(object, T::NAME.as_ptr()) != 0 {
            delete(ffi::PyCapsule_GetPointer(object, T::NAME.as_ptr()).cast::<T>());
        }
    }
}

fn capsule<'py, T: Managed>(
    py: Python<'py>,
    memory: TensorMemory,
    layout: &ArrayLayout,
) -> PyResult<Bound<'py, PyAny>> {
    let layout = exported(layout);
    let element = layout.element();
    let (code, bits, lanes) = element.dlpack();
    let mut shape: Box<[i64]> = layout.shape().iter().map(|&extent| extent as i64).collect();
    let item = element.size_bytes() as i64;
    let mut strides: Box<[i64]> = layout.strides().iter().map(|stride| stride / item).collect();
    let TensorMemory { address, device, flags, owner } = memory;
    let tensor = TensorView {
        data: address as *mut c_void,
        device_type: device.0,
        device_id: device.1,
        dimensions: shape.len() as i32,
        code,
        bits,
        lanes,
        shape: shape.as_mut_ptr(),
        strides: strides.as_mut_ptr(),
        byte_offset: 0,
    };
    let made = Exported { managed: T::new(tensor, flags), _shape: shape, _strides: strides, _owner: owner };
    let made = Box::into_raw(Box::new(made));
    // SAFETY: the structure is valid until it is deleted.
    unsafe {
        (*made).managed.set_context(made.cast());
        let managed = &raw mut (*made).managed;
        let capsule = ffi::PyCapsule_New(managed.cast(), T::NAME.as_ptr(), Some(end::<T>));
        Bound::from_owned_ptr_or_err(py, capsule).inspect_err(|_| delete(managed))
    }
}

/// Returns a capsule with an array: of DLPack 1, or of older versions, which cannot state that the
/// array is read-only.
pub fn dlpack<'py>(
    py: Python<'py>,
    memory: impl Into<TensorMemory>,
    layout: &ArrayLayout,
    versioned: bool,
) -> PyResult<Bound<'py, PyAny>> {
    match versioned {
        true => capsule::<VersionedTensor>(py, memory.into(), layout),
        false => capsule::<LegacyTensor>(py, memory.into(), layout),
    }
}
