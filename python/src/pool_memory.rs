//! Python's buffer protocol over blocks of a pool.
//!
//! `BlockMemory` owns a hold on a block and describes an array in it. A view of it keeps it alive,
//! so the hold ends with the last view, and nothing counts views. `BlockExporter` is the base of
//! the package's classes: each view of such an object is one of a `BlockMemory` that its method
//! `_export` returns.
//!
//! The types are made by the C interface, for the reason in memory.rs.

#![allow(unsafe_code, reason = "Python's buffer protocol consists of functions with raw pointers")]

use std::ffi::{CStr, c_int, c_uint, c_void};
use std::ptr::null_mut;

use hostbuf_pool::{ArrayLayout, ElementType};
use pyo3::exceptions::PyBufferError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::{Borrowed, ffi};

use crate::memory::{BF_GETBUFFER, BF_RELEASEBUFFER, PyBuffer, PyObject_GetBuffer};
use crate::pool_owner::{ViewOwner, exported};

// The bits of requests.
const WRITABLE: c_int = 0x1;
const FORMAT: c_int = 0x4;
const EXTENTS: c_int = 0x8;
const STRIDES: c_int = 0x10;
const C_CONTIGUOUS: c_int = 0x20;
const F_CONTIGUOUS: c_int = 0x40;
const ANY_CONTIGUOUS: c_int = 0x80;

/// An array in a block.
struct BlockMemory {
    owner: ViewOwner,
    format: Option<&'static CStr>,
    name: &'static str,
    item_bytes: isize,
    /// The bytes of all elements.
    bytes: isize,
    shape: Box<[isize]>,
    strides: Box<[isize]>,
    is_c_contiguous: bool,
    is_f_contiguous: bool,
}

/// Returns the format of an element in Python's module struct, as numpy extends it.
fn format_of(element: ElementType) -> Option<&'static CStr> {
    Some(match element {
        ElementType::Bool => c"?",
        ElementType::Int8 => c"b",
        ElementType::Int16 => c"h",
        ElementType::Int32 => c"i",
        ElementType::Int64 => c"q",
        ElementType::UInt8 => c"B",
        ElementType::UInt16 => c"H",
        ElementType::UInt32 => c"I",
        ElementType::UInt64 => c"Q",
        ElementType::Float16 => c"e",
        ElementType::Float32 => c"f",
        ElementType::Float64 => c"d",
        ElementType::Complex64 => c"Zf",
        ElementType::Complex128 => c"Zd",
        _ => return None,
    })
}

impl BlockMemory {
    fn new(owner: ViewOwner, layout: &ArrayLayout) -> BlockMemory {
        let layout = exported(layout);
        let element = layout.element();
        let mut reversed: Vec<u64> = layout.shape().to_vec();
        reversed.reverse();
        let mut backwards: Vec<i64> = layout.strides().to_vec();
        backwards.reverse();
        let transposed = ArrayLayout::new(element, &reversed, &backwards);
        BlockMemory {
            owner,
            format: format_of(element),
            name: element.name(),
            item_bytes: element.size_bytes() as isize,
            bytes: (layout.elements() * element.size_bytes()) as isize,
            shape: layout.shape().iter().map(|&extent| extent as isize).collect(),
            strides: layout.strides().iter().map(|&stride| stride as isize).collect(),
            is_c_contiguous: layout.is_contiguous(),
            is_f_contiguous: transposed.is_ok_and(|layout| layout.is_contiguous()),
        }
    }

    /// Checks a request.
    ///
    /// # Errors
    /// BufferError.
    fn check(&self, flags: c_int) -> PyResult<()> {
        let has = |bits: c_int| flags & bits == bits;
        let refused = |why: String| Err(PyBufferError::new_err(why));
        if !self.owner.is_mapped() {
            return refused("a forked child has no part in its parent's blocks".into());
        }
        if has(WRITABLE) && self.owner.is_read_only() {
            return refused("the block is published, and so read-only".into());
        }
        if has(FORMAT) && self.format.is_none() {
            return refused(format!(
                "the buffer protocol has no format for {}: use numpy() or torch()",
                self.name
            ));
        }
        let is_contiguous = if has(F_CONTIGUOUS) {
            self.is_f_contiguous
        } else if has(ANY_CONTIGUOUS) {
            self.is_c_contiguous || self.is_f_contiguous
        } else if has(C_CONTIGUOUS) || !has(STRIDES) {
            self.is_c_contiguous
        } else {
            true
        };
        if !is_contiguous {
            return refused("the array in the block is not contiguous".into());
        }
        Ok(())
    }
}

/// A Python object.
#[repr(C)]
struct BlockMemoryObject {
    base: ffi::PyObject,
    memory: *mut BlockMemory,
}

unsafe extern "C" fn get_buffer(object: *mut ffi::PyObject, to: *mut PyBuffer, flags: c_int) -> c_int {
    // SAFETY: the interpreter calls this with its lock, an object of the type, and a structure to
    // fill. The arrays live as long as the object, to which the view refers.
    unsafe {
        let py = Python::assume_attached();
        (*to).obj = null_mut();
        let memory = &*(*object.cast::<BlockMemoryObject>()).memory;
        if let Err(error) = memory.check(flags) {
            error.restore(py);
            return -1;
        }
        let if_requested = |bits: c_int, array: &[isize]| match flags & bits == bits {
            true => array.as_ptr().cast_mut(),
            false => null_mut(),
        };
        let format = memory.format.filter(|_| flags & FORMAT == FORMAT);
        ffi::Py_INCREF(object);
        *to = PyBuffer {
            buf: memory.owner.address() as *mut c_void,
            obj: object,
            len: memory.bytes,
            itemsize: memory.item_bytes,
            readonly: c_int::from(memory.owner.is_read_only()),
            ndim: memory.shape.len() as c_int,
            format: format.map_or(null_mut(), |format| format.as_ptr().cast_mut()),
            shape: if_requested(EXTENTS, &memory.shape),
            strides: if_requested(STRIDES, &memory.strides),
            suboffsets: null_mut(),
            internal: null_mut(),
        };
        0
    }
}

unsafe extern "C" fn end(object: *mut ffi::PyObject) {
    // SAFETY: the interpreter calls this once, with its lock, when there is no reference to the
    // object, and so no view of it.
    unsafe {
        let memory = (*object.cast::<BlockMemoryObject>()).memory;
        if !memory.is_null() {
            drop(Box::from_raw(memory));
        }
        let kind = ffi::Py_TYPE(object);
        let free: ffi::freefunc = std::mem::transmute(ffi::PyType_GetSlot(kind, ffi::Py_tp_free));
        free(object.cast());
        ffi::Py_DECREF(kind.cast());
    }
}

/// Makes a type from its slots.
fn make_type(
    py: Python<'_>,
    name: &'static CStr,
    doc: &'static CStr,
    (size, flags): (usize, c_uint),
    functions: &[(c_int, *mut c_void)],
) -> PyResult<Py<PyAny>> {
    let slot = |slot: c_int, pfunc: *mut c_void| ffi::PyType_Slot { slot, pfunc };
    let mut slots: Vec<_> = functions.iter().map(|&(number, function)| slot(number, function)).collect();
    slots.push(slot(ffi::Py_tp_doc, doc.as_ptr() as *mut c_void));
    slots.push(slot(0, null_mut()));
    let mut specification = ffi::PyType_Spec {
        name: name.as_ptr(),
        basicsize: size as c_int,
        itemsize: 0,
        flags: (ffi::Py_TPFLAGS_DEFAULT as c_uint) | flags,
        slots: slots.as_mut_ptr(),
    };
    // SAFETY: the functions have the types of their slots; the type copies everything except the
    // name and the text, which are static.
    let made = unsafe { Bound::from_owned_ptr_or_err(py, ffi::PyType_FromSpec(&raw mut specification)) }?;
    Ok(made.unbind())
}

/// Returns a Python object with the buffer protocol for an array, which keeps its block.
pub fn block_memory<'py>(
    py: Python<'py>,
    owner: ViewOwner,
    layout: &ArrayLayout,
) -> PyResult<Bound<'py, PyAny>> {
    static TYPE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let kind = TYPE.get_or_try_init(py, || {
        let functions = [(ffi::Py_tp_dealloc, end as *mut c_void), (BF_GETBUFFER, get_buffer as *mut c_void)];
        let doc = c"An array in a block, by the buffer protocol.";
        let size = size_of::<BlockMemoryObject>();
        make_type(py, c"hostbuf._hostbuf.BlockMemory", doc, (size, 0), &functions)
    })?;
    let memory = BlockMemory::new(owner, layout);
    // SAFETY: a type that was made above. The rest of a new object is zero.
    unsafe {
        let kind = kind.as_ptr().cast::<ffi::PyTypeObject>();
        let object = Bound::from_owned_ptr_or_err(py, ffi::PyType_GenericAlloc(kind, 0))?;
        (*object.as_ptr().cast::<BlockMemoryObject>()).memory = Box::into_raw(Box::new(memory));
        Ok(object)
    }
}

unsafe extern "C" fn re_export(object: *mut ffi::PyObject, to: *mut PyBuffer, flags: c_int) -> c_int {
    // SAFETY: the interpreter calls this with its lock, an object of a subtype of the type below,
    // and a structure to fill. The view refers to the returned object, whose type fills it.
    unsafe {
        let py = Python::assume_attached();
        (*to).obj = null_mut();
        match Borrowed::from_ptr(py, object).call_method1("_export", (flags,)) {
            Ok(memory) => PyObject_GetBuffer(memory.as_ptr(), to, flags),
            Err(error) => {
                error.restore(py);
                -1
            }
        }
    }
}

/// Does nothing, since views refer to a `BlockMemory`. numpy keeps a view, instead of an object
/// whose view it has released, only if the type has such a function.
unsafe extern "C" fn release_buffer(_: *mut ffi::PyObject, _: *mut PyBuffer) {}

/// Returns the base of the package's classes with blocks.
pub fn exporter_type(py: Python<'_>) -> PyResult<Py<PyAny>> {
    static TYPE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let made = TYPE.get_or_try_init(py, || {
        let functions =
            [(BF_GETBUFFER, re_export as *mut c_void), (BF_RELEASEBUFFER, release_buffer as *mut c_void)];
        let doc = c"An object whose method _export returns the object with its buffer.";
        let layout = (size_of::<ffi::PyObject>(), ffi::Py_TPFLAGS_BASETYPE as c_uint);
        make_type(py, c"hostbuf._hostbuf.BlockExporter", doc, layout, &functions)
    })?;
    Ok(made.clone_ref(py))
}
