//! The tensors of a handle, during and after their load.

use std::ffi::c_void;
use std::ptr::null;
use std::sync::Arc;

use ::hostbuf_load::{LoadError, TensorEntry, TensorTable, Tensors};

use crate::status::{CallError, CallResult};

/// The tensors of a handle, during and after their load.
#[derive(Clone)]
pub(crate) enum TensorSource {
    Loaded(Arc<Tensors>),
    /// The table of files that are being loaded.
    Announced(Arc<TensorTable>),
}

impl TensorSource {
    pub(crate) fn table(&self) -> &TensorTable {
        match self {
            TensorSource::Loaded(tensors) => tensors.table(),
            TensorSource::Announced(table) => table,
        }
    }

    /// Returns the description of a tensor.
    ///
    /// # Errors
    /// [`LoadError::NoTensor`].
    pub(crate) fn entry(&self, name: &str) -> Result<&TensorEntry, LoadError> {
        let table = self.table();
        let no_tensor = || LoadError::NoTensor { name: name.to_owned(), tensors: table.tensors().len() };
        table.get(name).ok_or_else(no_tensor)
    }

    /// Returns the loaded tensors.
    ///
    /// # Errors
    /// `HOSTBUF_NOTHING` while they are being loaded.
    pub(crate) fn loaded(&self) -> CallResult<&Arc<Tensors>> {
        match self {
            TensorSource::Loaded(tensors) => Ok(tensors),
            TensorSource::Announced(_) => {
                let why =
                    "the tensors are being loaded: take slices of those that hostbuf_load_to_gpu returns";
                Err(CallError::Nothing(why.to_owned()))
            }
        }
    }

    /// Returns the address of a tensor in the buffer, or null while it is being loaded.
    pub(crate) fn address(&self, name: &str) -> *const c_void {
        let tensor = self.loaded().ok().and_then(|tensors| tensors.get(name).ok());
        tensor.map_or(null(), |tensor| tensor.bytes.as_ptr().cast())
    }

    /// Returns whether both are of one handle.
    pub(crate) fn is_same(&self, other: &TensorSource) -> bool {
        match (self, other) {
            (TensorSource::Loaded(own), TensorSource::Loaded(other)) => Arc::ptr_eq(own, other),
            (TensorSource::Announced(own), TensorSource::Announced(other)) => Arc::ptr_eq(own, other),
            _ => false,
        }
    }
}
