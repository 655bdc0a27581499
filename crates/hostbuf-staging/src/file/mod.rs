//! Files, and the backends by which they are read and written.

mod backend;
mod backend_selection;
mod cached_read;
#[cfg(feature = "cuda")]
mod cufile;
mod direct_io;
mod file_descriptors;
mod file_system;
mod mapped_file;
mod mapped_writes;
mod non_temporal;
mod open_error;
mod page_cache;
mod staged_file;
mod uring;

pub use backend::{Backend, BackendChoice};
#[cfg(feature = "cuda")]
pub use cufile::{CuFile, CuFileBuffer, CuFileCode, CuFileDriver, CuFileError};
pub use file_system::is_in_memory;
pub use open_error::OpenError;
pub use page_cache::{CachedPages, cached_pages, cached_pages_in, drop_cached_pages};
pub use staged_file::{File, FileOptions};
pub(crate) use uring::with_slot_memory;
