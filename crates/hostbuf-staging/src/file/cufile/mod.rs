//! Reads and writes between files and memory of a GPU by NVIDIA's cuFile.
//!
//! libcufile is loaded at run time, by the first call that asks for it. Without GPUDirect Storage
//! it works in its compatibility mode, through a buffer of its own.

mod cufile_buffer;
mod cufile_driver;
mod cufile_error;
mod cufile_functions;
mod cufile_handle;

pub use cufile_buffer::CuFileBuffer;
pub use cufile_driver::CuFileDriver;
pub use cufile_error::{CuFileCode, CuFileError};
pub use cufile_handle::CuFile;
