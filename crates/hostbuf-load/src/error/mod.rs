//! The errors of loading.

mod all_or_none;
mod file_error;
mod load_error;

pub(crate) use all_or_none::all_or_none;
pub use file_error::{FileError, FileProblem};
pub use load_error::{LoadError, LoadErrorKind};
