//! Converts errors of pools to exceptions of the package.

use hostbuf::Error;
use hostbuf_pool::{AcquireError, BrokerRefusal, PoolError, TakeError};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

use crate::error::raised;

/// Returns the exception of a kind, with attributes. The package's function
/// `hostbuf._error.of_pool` selects its class.
pub fn of_kind(py: Python<'_>, kind: &str, message: String, attributes: &[(&str, u64)]) -> PyErr {
    static OF: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let made = OF
        .import(py, "hostbuf._error", "of_pool")
        .and_then(|of| of.call1((kind, message, attributes.to_vec())));
    made.map_or_else(|failed| failed, PyErr::from_value)
}

pub fn pool_raised(py: Python<'_>, error: PoolError) -> PyErr {
    let message = error.to_string();
    let kind = match error {
        PoolError::NoBroker { .. } => "NoBroker",
        PoolError::BrokerGone => "BrokerGone",
        PoolError::Refused(BrokerRefusal::NoSpace { requested, available, .. }) => {
            let attributes = [("requested", requested), ("available", available)];
            return of_kind(py, "NoSpace", message, &attributes);
        }
        PoolError::Refused(BrokerRefusal::UnknownSegment) => "Gone",
        PoolError::Refused(_) => "Refused",
        PoolError::Timeout { .. } => "Timeout",
        PoolError::Invalid { what } => return raised(py, Error::Invalid { what }),
        PoolError::Forked => "Forked",
        PoolError::Memory(error) => return raised(py, error),
        PoolError::Os { doing, source } => return raised(py, Error::Os { doing, source }),
        PoolError::Gpu(_) => "Gpu",
        _ => "Other",
    };
    of_kind(py, kind, message, &[])
}

pub fn take_raised(py: Python<'_>, error: TakeError) -> PyErr {
    match error {
        TakeError::Pool(error) => pool_raised(py, error),
        TakeError::Closed => PyValueError::new_err("the producer is closed"),
        other => of_kind(py, "Timeout", other.to_string(), &[]),
    }
}

pub fn acquire_raised(py: Python<'_>, error: AcquireError) -> PyErr {
    let message = match &error {
        AcquireError::OnGpu { gpu } => {
            format!("the block lies on {gpu}: use Pool.acquire_gpu() in a process that sees this GPU")
        }
        AcquireError::OnHost => "the block lies on the host: use Pool.acquire()".to_owned(),
        error => error.to_string(),
    };
    let kind = match error {
        AcquireError::InvalidToken(_) | AcquireError::OtherPool { .. } => "InvalidToken",
        AcquireError::Gone => "Gone",
        AcquireError::NotPublished => "NotPublished",
        AcquireError::OutOfRange => "OutOfRange",
        AcquireError::Quota { quota } => return of_kind(py, "Quota", message, &[("quota", quota.into())]),
        AcquireError::InvalidHeader(_) => "InvalidHeader",
        AcquireError::OnGpu { .. } => "OnGpu",
        AcquireError::OnHost => "OnHost",
        AcquireError::Gpu(_) => "Gpu",
        AcquireError::Pool(error) => return pool_raised(py, error),
        _ => "Other",
    };
    of_kind(py, kind, message, &[])
}

/// Returns the exception for an error of the driver.
#[cfg(feature = "cuda")]
pub fn gpu_raised(py: Python<'_>, error: &hostbuf_cuda::CudaError) -> PyErr {
    of_kind(py, "Gpu", error.to_string(), &[])
}

#[cfg(feature = "cuda")]
pub fn ready_raised(py: Python<'_>, error: &hostbuf_pool::ReadyError) -> PyErr {
    let kind = match error {
        hostbuf_pool::ReadyError::ProducerEnded { .. } => "ProducerEnded",
        hostbuf_pool::ReadyError::Forked => "Forked",
        _ => "Gpu",
    };
    of_kind(py, kind, error.to_string(), &[])
}

/// Returns the exception for a description of an array or of a content that a block cannot have.
pub fn invalid(py: Python<'_>, what: impl Into<String>) -> PyErr {
    raised(py, Error::Invalid { what: what.into() })
}
