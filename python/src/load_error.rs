//! The exceptions of loads.

use std::io::ErrorKind;

use hostbuf_load::{FileError, FileProblem, LoadError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

use crate::error::raised;
use crate::os_error::{OsErrorFields, os_fields};
use crate::transfer_error::transfer_raised;

/// Returns the exception of a load. The package's function `hostbuf._error.of_load` makes it.
pub fn load_raised(py: Python<'_>, error: LoadError) -> PyErr {
    static OF: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    match error {
        LoadError::Job(error) => raised(py, error),
        LoadError::Transfer(error) => transfer_raised(py, &error),
        error => {
            let kind = format!("{:?}", error.kind());
            let made = OF
                .import(py, "hostbuf._error", "of_load")
                .and_then(|of| of.call1((kind, error.to_string(), missing_file(&error))));
            made.map_or_else(|failed| failed, PyErr::from_value)
        }
    }
}

/// Returns the fields of the error if a file does not exist.
fn missing_file(error: &LoadError) -> Option<OsErrorFields> {
    let LoadError::File(FileError { path, problem, .. }) = error else { return None };
    match problem {
        FileProblem::Io { source, .. } if source.kind() == ErrorKind::NotFound => {
            Some(os_fields(source, path))
        }
        FileProblem::MissingShard { .. } => Some(os_fields(&ErrorKind::NotFound.into(), path)),
        _ => None,
    }
}
