//! Files of tensors, loaded once per host into the memory that all ranks share.

mod file_error;
mod format;
mod shards;
mod slice;
mod table;
#[cfg(test)]
mod test_folder;

pub use file_error::{FileError, FileProblem};
pub use format::FileFormat;
pub use slice::{FusedPart, SliceError, StridedPart, TensorSlice};
pub use table::{
    ArrayOrder, ByteOrder, Dtype, FileVersion, InvalidTable, SourceFile, TensorEntry, TensorTable,
};
