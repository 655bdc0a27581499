//! Converts errors of files to exceptions of Python.

use std::ffi::OsString;
use std::io;
use std::path::Path;

use hostbuf_staging::OpenError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

/// The fields of an `OSError`: the name of the error's kind, the kernel's number or 0, the reason
/// of an error that has no number, and the path.
pub type OsErrorFields = (String, i32, String, OsString);

/// Returns the `OSError` for an error of the file at `path`, of the class that Python has for its
/// number. The package's function `hostbuf._error.of_os` makes it.
pub fn os_raised(py: Python<'_>, error: &io::Error, path: &Path) -> PyErr {
    static OF: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let made = OF.import(py, "hostbuf._error", "of_os").and_then(|of| of.call1((os_fields(error, path),)));
    made.map_or_else(|failed| failed, PyErr::from_value)
}

/// Returns the fields for an error of the file at `path`.
pub fn os_fields(error: &io::Error, path: &Path) -> OsErrorFields {
    let source = innermost(error);
    let (kind, number) = (format!("{:?}", error.kind()), source.raw_os_error().unwrap_or(0));
    (kind, number, source.to_string(), path.as_os_str().to_owned())
}

/// Returns the error of the kernel that is in an error, if there is one.
fn innermost(error: &io::Error) -> &io::Error {
    let Some(inner) = error.get_ref() else { return error };
    let opened = inner.downcast_ref::<OpenError>().map(|opened| &opened.source);
    opened.or_else(|| inner.downcast_ref::<io::Error>()).map_or(error, innermost)
}
