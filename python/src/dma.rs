//! Memory of other libraries that a device can access: `hostbuf.dma`.

use std::sync::Mutex;

use hostbuf::register::{Device, DeviceName};
use hostbuf::{Access, Span};
use hostbuf_os::poison::IgnorePoison;
use hostbuf_pool::adopt::{self, AdoptError, process_adopter};
use pyo3::prelude::*;

use crate::error::{raised, raised_as};

/// A hold on the registration of adopted memory, until it is closed.
#[pyclass(frozen, module = "hostbuf._hostbuf")]
pub struct AdoptedMemory {
    held: Mutex<Option<adopt::Adopted<Device>>>,
}

#[pymethods]
impl AdoptedMemory {
    /// Returns the device's address of the first byte, or `None` if the hold is closed. For a
    /// device without addresses of its own, it is the address in hostbuf's mapping of the file.
    fn address(&self) -> Option<u64> {
        let held = self.held.lock().ignore_poison();
        let held = held.as_ref()?;
        match held.key().address {
            0 => Some(held.host_span().start() as u64),
            _ => held.device_address(),
        }
    }

    /// Returns the address of the first byte in hostbuf's mapping, or `None` if the hold is closed.
    fn host_address(&self) -> Option<usize> {
        self.held.lock().ignore_poison().as_ref().map(|held| held.host_span().start())
    }

    /// Ends the hold. Ending it again does nothing.
    fn close(&self, py: Python<'_>) {
        let held = self.held.lock().ignore_poison().take();
        py.detach(|| drop(held));
    }
}

/// A hold, or the reason why the memory has to be copied.
type HoldOrReason = (Option<AdoptedMemory>, Option<String>);

/// Adopts memory for a device.
#[pyfunction]
pub fn adopt_memory(
    py: Python<'_>,
    device: &str,
    start: usize,
    length: usize,
    writable: bool,
) -> PyResult<HoldOrReason> {
    let device: DeviceName = device.parse().map_err(|error| raised(py, error))?;
    let span = Span::new(start, length).map_err(|error| raised(py, hostbuf::Error::from(error)))?;
    let access = if writable { Access::WRITE } else { Access::READ };
    match py.detach(|| process_adopter(&device)?.adopt(span, access)) {
        Ok(held) => Ok((Some(AdoptedMemory { held: Mutex::new(Some(held)) }), None)),
        Err(error @ (AdoptError::Invalid(_) | AdoptError::Forked)) => {
            Err(raised_as(py, error.kind(), &error.to_string()))
        }
        Err(error) => Ok((None, Some(error.to_string()))),
    }
}
