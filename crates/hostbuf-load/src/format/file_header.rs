//! The statements of a file's header.

use super::file_format::FileFormat;
use crate::table::{Dtype, TensorEntry};

/// The statements of a file's header.
#[derive(Debug)]
pub(crate) struct FileHeader {
    pub(crate) format: FileFormat,
    /// The offset of the first byte of data.
    pub(crate) data_start: u64,
    /// The tensors. Their index of the file is 0.
    pub(crate) tensors: Vec<TensorEntry>,
    /// The free texts of the header, sorted by key.
    pub(crate) metadata: Vec<(String, String)>,
}

/// Returns the tensor of all bytes of a file.
pub(super) fn whole_file(name: String, bytes: u64) -> TensorEntry {
    TensorEntry {
        name,
        dtype: Dtype::U8,
        shape: vec![bytes],
        order: Default::default(),
        byte_order: Default::default(),
        file: 0,
        range: 0..bytes,
    }
}
