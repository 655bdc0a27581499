//! Converts errors of the library to exceptions of the package.

use hostbuf::Error;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

/// Returns the exception for an error. The package's function `hostbuf._error.of` selects its class
/// by the error's kind.
pub fn raised(py: Python<'_>, error: impl Into<Error>) -> PyErr {
    let error = error.into();
    raised_as(py, error.kind(), &error.to_string())
}

/// Returns the exception for the kind and the message of an error.
pub fn raised_as(py: Python<'_>, kind: &str, message: &str) -> PyErr {
    static OF: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let made = OF.import(py, "hostbuf._error", "of").and_then(|of| of.call1((kind, message)));
    made.map_or_else(|failed| failed, PyErr::from_value)
}

/// Runs a call of the library without the interpreter's lock, and converts its error.
pub fn outside<T: Send, E: Into<Error> + Send>(
    py: Python<'_>,
    work: impl FnOnce() -> Result<T, E> + Send,
) -> PyResult<T> {
    py.detach(work).map_err(|error| raised(py, error))
}
