//! Arguments of Python's functions.

use hostbuf::{Bytes, Error};
use pyo3::exceptions::{PyOverflowError, PyTypeError};
use pyo3::prelude::*;

use crate::error::raised;

/// Converts a number of bytes, or text in the syntax of the command line (`2G`).
///
/// # Errors
/// InvalidError for a number or text that is not a valid size, TypeError for other types.
pub fn bytes(name: &str, given: &Bound<'_, PyAny>) -> PyResult<u64> {
    let Ok(text) = given.extract::<String>() else { return argument::<u64>(name, given) };
    let parsed = text.parse::<Bytes>();
    let parsed = parsed.map_err(|why| Error::Invalid { what: format!("invalid {name} \"{text}\": {why}") });
    parsed.map(|bytes| bytes.0).map_err(|error| raised(given.py(), error))
}

/// Converts an argument of a collective call. An invalid argument is reported to all ranks.
pub fn argument<'py, T>(name: &str, given: &Bound<'py, PyAny>) -> PyResult<T>
where
    T: for<'a> FromPyObject<'a, 'py>,
    for<'a> PyErr: From<<T as FromPyObject<'a, 'py>>::Error>,
{
    given.extract().map_err(|error| {
        let (error, py) = (PyErr::from(error), given.py());
        if error.is_instance_of::<PyTypeError>(py) {
            PyErr::from_type(error.get_type(py), format!("{name}: {}", error.value(py)))
        } else if error.is_instance_of::<PyOverflowError>(py) {
            raised(py, Error::Invalid { what: format!("{name} = {given} is out of range") })
        } else {
            error
        }
    })
}
