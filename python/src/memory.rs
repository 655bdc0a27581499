//! Python's buffer protocol over a host buffer.
//!
//! A type of its own by the C interface, since the limited interface of CPython 3.9 and 3.10 has no
//! names for this protocol. Their numbers and the layout of `Py_buffer` are part of the stable
//! interface since 3.11 and were the same before: types made from a specification have taken them
//! since 3.9 (bpo-40724).

#![allow(unsafe_code, reason = "Python's buffer protocol consists of functions with raw pointers")]

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::ptr::null_mut;
use std::sync::Arc;

use hostbuf::{FillState, HostBuffer};
use pyo3::exceptions::{PyBufferError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyTuple;
use pyo3::{Borrowed, ffi};

use crate::handle::BufferHandle;
use crate::writers::Writers;

pub const BF_GETBUFFER: c_int = 1;
pub const BF_RELEASEBUFFER: c_int = 2;
const ANY_CONTIGUOUS: c_int = 0x0080 | 0x0010 | 0x0008;

#[repr(C)]
pub struct PyBuffer {
    pub buf: *mut c_void,
    pub obj: *mut ffi::PyObject,
    pub len: isize,
    pub itemsize: isize,
    pub readonly: c_int,
    pub ndim: c_int,
    pub format: *mut c_char,
    pub shape: *mut isize,
    pub strides: *mut isize,
    pub suboffsets: *mut isize,
    pub internal: *mut c_void,
}

unsafe extern "C" {
    fn PyBuffer_FillInfo(
        view: *mut PyBuffer,
        object: *mut ffi::PyObject,
        buf: *mut c_void,
        len: isize,
        readonly: c_int,
        flags: c_int,
    ) -> c_int;
    pub fn PyObject_GetBuffer(object: *mut ffi::PyObject, view: *mut PyBuffer, flags: c_int) -> c_int;
    fn PyBuffer_Release(view: *mut PyBuffer);
}

/// The buffer of a `Memory`. It stays mapped as long as this exists, since numpy's arrays may use
/// the memory of an object whose view they have released.
struct MemoryView {
    buffer: HostBuffer,
    writers: Arc<Writers>,
    readonly: bool,
}

/// A Python object. Its fields are accessed only with the interpreter's lock.
#[repr(C)]
struct MemoryObject {
    base: ffi::PyObject,
    view: *mut MemoryView,
    closed: bool,
}

/// Returns whether new views are read-only.
fn read_only(view: &MemoryView) -> PyResult<bool> {
    let state = view.buffer.fill_state().map_err(|error| PyBufferError::new_err(error.to_string()))?;
    Ok(view.readonly || state == FillState::Frozen)
}

unsafe extern "C" fn get_buffer(object: *mut ffi::PyObject, to: *mut PyBuffer, flags: c_int) -> c_int {
    // SAFETY: the interpreter calls this with its lock, an object of the type, and a structure to
    // fill.
    unsafe {
        let py = Python::assume_attached();
        (*to).obj = null_mut();
        let memory = &*object.cast::<MemoryObject>();
        let view = &*memory.view;
        // Counted before the state is read, so that no freeze comes between. During a freeze no
        // writable view is made.
        let counted = view.writers.try_add();
        let readonly = match memory.closed {
            false => read_only(view).map(|readonly| readonly || !counted),
            true => Err(PyValueError::new_err("the buffer is closed")),
        };
        if counted && !matches!(readonly, Ok(false)) {
            view.writers.remove();
        }
        let readonly = match readonly {
            Ok(readonly) => readonly,
            Err(error) => {
                error.restore(py);
                return -1;
            }
        };
        let start = view.buffer.as_ptr().as_ptr().cast();
        let length = view.buffer.len() as isize;
        let code = PyBuffer_FillInfo(to, object, start, length, c_int::from(readonly), flags);
        match (code, readonly) {
            (0, false) => (*to).internal = object.cast(),
            (0, true) => (*to).internal = null_mut(),
            (_, false) => view.writers.remove(),
            (_, true) => {}
        }
        code
    }
}

unsafe extern "C" fn release_buffer(object: *mut ffi::PyObject, from: *mut PyBuffer) {
    // SAFETY: as above; `get_buffer` has filled the view.
    unsafe {
        let memory = &*object.cast::<MemoryObject>();
        if !(*from).internal.is_null() {
            let view = &*memory.view;
            view.writers.remove();
        }
    }
}

/// Implements `Memory(handle, readonly)`.
unsafe extern "C" fn make(
    kind: *mut ffi::PyTypeObject,
    arguments: *mut ffi::PyObject,
    _: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    // SAFETY: the interpreter calls this with its lock, a subtype of the type below, and a tuple.
    unsafe {
        let py = Python::assume_attached();
        let made = (|| {
            let arguments = Borrowed::from_ptr(py, arguments).to_owned().cast_into::<PyTuple>()?;
            let (handle, readonly): (Bound<'_, BufferHandle>, bool) = arguments.extract()?;
            let buffer = handle.get().buffer()?;
            let view = MemoryView { writers: Writers::of(&buffer), buffer, readonly };
            let allocate: ffi::allocfunc = std::mem::transmute(ffi::PyType_GetSlot(kind, ffi::Py_tp_alloc));
            let object = Bound::from_owned_ptr_or_err(py, allocate(kind, 0))?;
            // The rest is zero.
            (*object.as_ptr().cast::<MemoryObject>()).view = Box::into_raw(Box::new(view));
            Ok::<_, PyErr>(object)
        })();
        made.map_or_else(
            |error| {
                error.restore(py);
                null_mut()
            },
            Bound::into_ptr,
        )
    }
}

unsafe extern "C" fn end(object: *mut ffi::PyObject) {
    // SAFETY: the interpreter calls this once, with its lock, when there is no reference to the
    // object, and so no view of it.
    unsafe {
        drop(Box::from_raw((*object.cast::<MemoryObject>()).view));
        let kind = ffi::Py_TYPE(object);
        let free: ffi::freefunc = std::mem::transmute(ffi::PyType_GetSlot(kind, ffi::Py_tp_free));
        free(object.cast());
        ffi::Py_DECREF(kind.cast());
    }
}

static TYPE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

/// Returns the type. The first call makes it.
pub fn type_of(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    let made = TYPE.get_or_try_init(py, || {
        let slot = |slot: c_int, pfunc: *mut c_void| ffi::PyType_Slot { slot, pfunc };
        let mut slots = [
            slot(ffi::Py_tp_new, make as *mut c_void),
            slot(ffi::Py_tp_dealloc, end as *mut c_void),
            slot(ffi::Py_tp_doc, c"A host buffer's memory, by the buffer protocol.".as_ptr() as *mut c_void),
            slot(BF_GETBUFFER, get_buffer as *mut c_void),
            slot(BF_RELEASEBUFFER, release_buffer as *mut c_void),
            slot(0, null_mut()),
        ];
        let mut specification = ffi::PyType_Spec {
            name: c"hostbuf._hostbuf.Memory".as_ptr(),
            basicsize: size_of::<MemoryObject>() as c_int,
            itemsize: 0,
            flags: (ffi::Py_TPFLAGS_DEFAULT | ffi::Py_TPFLAGS_BASETYPE) as c_uint,
            slots: slots.as_mut_ptr(),
        };
        // SAFETY: the functions have the types of their slots; the type copies everything except
        // the name and the text, which are static.
        let made = unsafe { Bound::from_owned_ptr_or_err(py, ffi::PyType_FromSpec(&raw mut specification)) }?;
        Ok::<_, PyErr>(made.unbind())
    })?;
    Ok(made.bind(py).clone())
}

/// Closes a `Memory`: no more views are made, and existing ones stay valid.
#[pyfunction]
pub fn close(memory: &Bound<'_, PyAny>) -> PyResult<()> {
    if !memory.is_instance(&type_of(memory.py())?)? {
        return Err(PyTypeError::new_err("expected a Memory"));
    }
    // SAFETY: the type was checked, and the interpreter's lock is held.
    unsafe { (*memory.as_ptr().cast::<MemoryObject>()).closed = true };
    Ok(())
}

/// Returns the address and the number of an object's bytes, by the buffer protocol.
///
/// # Errors
/// TypeError or BufferError for objects without the protocol, or whose bytes are not contiguous.
#[pyfunction]
pub fn span_of(object: &Bound<'_, PyAny>) -> PyResult<(usize, usize)> {
    // SAFETY: all zero is a valid, empty view.
    let mut view = unsafe { std::mem::zeroed::<PyBuffer>() };
    // SAFETY: an object, and a local variable for its view, which is released.
    unsafe {
        if PyObject_GetBuffer(object.as_ptr(), &raw mut view, ANY_CONTIGUOUS) != 0 {
            return Err(PyErr::fetch(object.py()));
        }
        let span = (view.buf as usize, view.len.unsigned_abs());
        PyBuffer_Release(&raw mut view);
        Ok(span)
    }
}
