//! The table of tensors of a set of files.

mod dtype;
mod file_version;
mod name_index;
mod region_layout;
mod source_file;
mod table_bytes;
mod table_encoding;
mod tensor_entry;
mod tensor_table;
#[cfg(test)]
mod tests;

pub use dtype::Dtype;
pub use file_version::FileVersion;
pub use source_file::SourceFile;
pub use table_encoding::InvalidTable;
pub use tensor_entry::{ArrayOrder, ByteOrder, TensorEntry};
pub use tensor_table::TensorTable;
