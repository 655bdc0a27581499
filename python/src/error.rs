//! Errors as Python has them: exceptions of the package, by the kind of what went wrong.

use hostbuf::Error;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

/// The exception for an error; the package's function `hostbuf._error.of` chooses its class by the
/// kind's name.
pub fn raised(py: Python<'_>, error: impl Into<Error>) -> PyErr {
    let error = error.into();
    static OF: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let made =
        OF.import(py, "hostbuf._error", "of").and_then(|of| of.call1((error.kind(), error.to_string())));
    made.map_or_else(|failed| failed, PyErr::from_value)
}

/// An outcome of the library's, carried out without the interpreter's lock.
pub fn outside<T: Send, E: Into<Error> + Send>(
    py: Python<'_>,
    work: impl FnOnce() -> Result<T, E> + Send,
) -> PyResult<T> {
    py.detach(work).map_err(|error| raised(py, error))
}
