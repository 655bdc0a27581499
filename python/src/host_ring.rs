//! The ring of the host, which stays until the process ends: files that are opened one after the
//! other use the same threads.

use std::sync::{Arc, Mutex};

use hostbuf_os::forking::hold_around_fork;
use hostbuf_os::poison::IgnorePoison;
use hostbuf_staging::{HostDevice, Ring};
use pyo3::prelude::*;

use crate::transfer_error::ring_raised;

type HostRing = Option<Arc<Ring<HostDevice>>>;

static HOST: Mutex<HostRing> = Mutex::new(None);

/// Returns the ring of the host.
pub fn of_host(py: Python<'_>) -> PyResult<Arc<Ring<HostDevice>>> {
    hold_around_fork!(HOST: HostRing);
    py.detach(|| {
        if let Some(known) = HOST.lock().ignore_poison().clone().filter(|ring| ring.is_usable()) {
            return Ok(known);
        }
        let ring = Ring::of_host()?;
        let ended = HOST.lock().ignore_poison().replace(ring.clone());
        // A ring that has ended is dropped without the lock.
        drop(ended);
        Ok(ring)
    })
    .map_err(|error| ring_raised(py, error))
}
