//! Converts errors of transfers and rings to exceptions of the package.

use std::path::Path;

use hostbuf::Error;
use hostbuf_staging::{RingError, TransferError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

use crate::error::raised;
use crate::os_error::os_fields;

/// Returns the exception of a transfer. The package's function `hostbuf._error.of_transfer` selects
/// its class.
pub fn transfer_raised(py: Python<'_>, error: &TransferError) -> PyErr {
    static OF: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let (kind, landed, os) = match error {
        TransferError::Io { landed, source, name, .. } => {
            ("Io", *landed, Some(os_fields(source, Path::new(name))))
        }
        TransferError::UnexpectedEnd { landed, .. } => ("UnexpectedEnd", *landed, None),
        TransferError::Device { landed, .. } => ("Device", *landed, None),
        TransferError::Cancelled { landed } => ("Cancelled", *landed, None),
        TransferError::OutOfRange { .. }
        | TransferError::OtherDevice { .. }
        | TransferError::Overlap { .. } => {
            return raised(py, Error::Invalid { what: error.to_string() });
        }
        TransferError::Forked => return forked(py),
        _ => ("Other", 0, None),
    };
    let made = OF
        .import(py, "hostbuf._error", "of_transfer")
        .and_then(|of| of.call1((kind, error.to_string(), landed, os)));
    made.map_or_else(|failed| failed, PyErr::from_value)
}

/// Returns the exception of a transfer that a forked child has from its parent.
pub fn forked(py: Python<'_>) -> PyErr {
    let message = "a forked child has no part in the transfers of its parent: start one in the child";
    crate::pool_error::of_kind(py, "Forked", message.to_owned(), &[])
}

pub fn ring_raised(py: Python<'_>, error: RingError) -> PyErr {
    let message = error.to_string();
    match error {
        RingError::Threads(source) => {
            raised(py, Error::Os { doing: "starting the threads of a ring".into(), source })
        }
        RingError::NoMemory { .. } => crate::error::raised_as(py, "NoSpace", &message),
        RingError::Register(error) => raised(py, error),
        RingError::Device(_) => crate::pool_error::of_kind(py, "Gpu", message, &[]),
        _ => raised(py, Error::Invalid { what: message }),
    }
}
