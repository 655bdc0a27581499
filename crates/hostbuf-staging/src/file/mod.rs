//! Files, and the ways in which they are read and written.

mod backend;
mod direct_io;
mod page_cache;
mod staged_file;

pub use backend::{Backend, BackendChoice};
pub use page_cache::{CachedPages, cached_pages, drop_cached_pages};
pub use staged_file::{File, FileOptions};
