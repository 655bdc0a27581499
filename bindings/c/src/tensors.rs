//! The tensors that were loaded into a buffer.

#![allow(unsafe_code, reason = "the functions are called by C, with pointers of the caller")]

use std::ffi::{CString, c_char};
use std::sync::Arc;

use ::hostbuf_load::Tensors;
use hostbuf_os::printable::printable_name;

use crate::load_error::load_error;
use crate::pointers::{input, struct_output, text};
use crate::status::{CallError, CallResult, argument, call, hostbuf_status, hostbuf_status as S};
use crate::tensor::hostbuf_tensor;
use crate::tensor_source::TensorSource;

sized_struct!(hostbuf_tensor, "HOSTBUF_TENSOR_INIT", last: shape: *const u64);

/// The tensors that were loaded into a buffer, which stays mapped as long as they exist. Threads
/// may share them.
pub struct hostbuf_tensors {
    pub(crate) source: TensorSource,
    /// The names, in the order of the table.
    names: Vec<CString>,
}

impl hostbuf_tensors {
    /// Makes a handle.
    ///
    /// # Errors
    /// `HOSTBUF_UNSUPPORTED` if a name contains NUL.
    pub(crate) fn new(source: TensorSource) -> CallResult<hostbuf_tensors> {
        let name = |name: &String| {
            let unsupported = |_| {
                let name = printable_name(name);
                let why =
                    format!("a name in C ends at its first NUL, and \"{name}\" has one: rename the tensor");
                CallError::Status(S::HOSTBUF_UNSUPPORTED, why)
            };
            CString::new(name.as_str()).map_err(unsupported)
        };
        let names = source.table().tensors().iter().map(|entry| name(&entry.name));
        let names = names.collect::<CallResult<_>>()?;
        Ok(hostbuf_tensors { source, names })
    }

    /// Gives loaded tensors to the caller.
    ///
    /// # Errors
    /// Those of [`new`](hostbuf_tensors::new).
    pub(crate) fn give(tensors: Tensors, to: &mut *mut hostbuf_tensors) -> CallResult<()> {
        let made = hostbuf_tensors::new(TensorSource::Loaded(Arc::new(tensors)))?;
        *to = Box::into_raw(Box::new(made));
        Ok(())
    }

    /// Describes the tensor with an index.
    fn describe(&self, index: usize) -> Option<hostbuf_tensor> {
        let (name, entry) = (self.names.get(index)?, self.source.table().tensors().get(index)?);
        Some(hostbuf_tensor::new(name, entry, self.source.address(&entry.name)))
    }
}

/// Returns the number of tensors, or 0 if `tensors` is null.
// Safety: `tensors` is null or a live handle.
#[unsafe(no_mangle)]
pub extern "C" fn hostbuf_tensors_count(tensors: Option<&hostbuf_tensors>) -> usize {
    tensors.map_or(0, |tensors| tensors.names.len())
}

/// Writes the description of a tensor to `to`. The tensors are numbered from 0, in the order of
/// their names.
// Safety: the pointers are null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hostbuf_tensors_at(
    tensors: Option<&hostbuf_tensors>,
    index: usize,
    to: *mut hostbuf_tensor,
) -> hostbuf_status {
    call(|| {
        // SAFETY: by the contract of this function.
        let mut to = unsafe { struct_output(to, "to") }?;
        let own = input(tensors, "tensors")?;
        let count = own.names.len();
        let invalid = || argument(format!("invalid index {index}: there are {count} tensors, from 0 on"));
        to.write(&own.describe(index).ok_or_else(invalid)?);
        Ok(())
    })
}

/// Writes the description of the tensor `name` to `to`.
///
/// `HOSTBUF_NOTHING`: there is no such tensor.
// Safety: the pointers are null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hostbuf_tensors_find(
    tensors: Option<&hostbuf_tensors>,
    name: *const c_char,
    to: *mut hostbuf_tensor,
) -> hostbuf_status {
    call(|| {
        // SAFETY: by the contract of this function.
        let (mut to, name) = unsafe { (struct_output(to, "to")?, text(name, "name")?) };
        let own = input(tensors, "tensors")?;
        // Its error states the number of tensors.
        let found = own.source.entry(name).map_err(load_error)?;
        let index = own.names.binary_search_by(|other| other.as_bytes().cmp(name.as_bytes()));
        let own_name = index.ok().and_then(|index| own.names.get(index));
        let own_name = own_name.ok_or_else(|| argument(format!("there is no tensor \"{name}\"")))?;
        to.write(&hostbuf_tensor::new(own_name, found, own.source.address(name)));
        Ok(())
    })
}

/// Frees the handle of tensors. Their memory stays mapped until the buffer and all slices of them
/// are released too. Null is ignored.
// Safety: `tensors` is null or a live handle. It is not used again.
#[unsafe(no_mangle)]
pub extern "C" fn hostbuf_tensors_free(tensors: Option<Box<hostbuf_tensors>>) {
    call(|| {
        drop(tensors);
        Ok(())
    });
}
