//! Devices, registrations, and the registration cache.

#![allow(unsafe_code, reason = "a lease is kept together with its cache")]

use std::sync::{Arc, Mutex};

use hostbuf::register::{
    self as library, Budget, DeviceKey, DeviceName, MonitorMode, Probe, Registrar, RegistrationCache,
};
use hostbuf::{Access, Error, Span};
use hostbuf_os::poison::IgnorePoison;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::error::{outside, raised};
use crate::handle::BufferHandle;

/// The GPU's address of the first byte, and the local and the remote key of RDMA. A value that the
/// device does not have is 0.
type Key = (u64, u32, u32);

fn numbers(key: DeviceKey) -> Key {
    (key.address, key.lkey, key.rkey)
}

/// Parses an access: `read`, `write`, `remote_read`, `remote_write` and `remote_atomic`, separated
/// by `|`.
fn access(words: &str) -> PyResult<Access> {
    words.split('|').try_fold(Access::READ, |sum, word| {
        let one = match word.trim() {
            "read" => Access::READ,
            "write" => Access::WRITE,
            "remote_read" => Access::REMOTE_READ,
            "remote_write" => Access::REMOTE_WRITE,
            "remote_atomic" => Access::REMOTE_ATOMIC,
            other => {
                return Err(PyValueError::new_err(format!(
                    "invalid access \"{other}\": expected read, write, remote_read, remote_write or remote_atomic, or several of them separated by |"
                )));
            }
        };
        Ok(sum | one)
    })
}

/// Checks whether this process can use a device. Returns the result and its description or reason.
#[pyfunction]
pub fn probe(py: Python<'_>, name: &str) -> PyResult<(bool, String)> {
    let name: DeviceName = name.parse().map_err(|error| raised(py, error))?;
    Ok(match py.detach(|| name.probe()) {
        Probe::Ready(what) => (true, what),
        Probe::Missing(why) => (false, why),
    })
}

/// Checks whether the kernel reports changed mappings to this process. Returns the result and its
/// description or reason.
#[pyfunction]
pub fn monitor(py: Python<'_>) -> (bool, String) {
    match py.detach(MonitorMode::probe) {
        Probe::Ready(what) => (true, what),
        Probe::Missing(why) => (false, why),
    }
}

/// A device for the registration of memory.
#[pyclass(frozen, module = "hostbuf._hostbuf")]
pub struct Device {
    device: Arc<library::Device>,
}

#[pymethods]
impl Device {
    #[new]
    fn open(py: Python<'_>, name: &str) -> PyResult<Device> {
        let name: DeviceName = name.parse().map_err(|error| raised(py, error))?;
        let device = outside(py, || name.open())?;
        Ok(Device { device: Arc::new(device) })
    }

    #[getter]
    fn name(&self) -> String {
        self.device.name()
    }
}

/// A registration of a part of a buffer with a device, until it is closed.
#[pyclass(frozen, module = "hostbuf._hostbuf")]
pub struct Registration {
    held: Mutex<Option<library::Registration<library::Device>>>,
}

#[pymethods]
impl Registration {
    #[new]
    fn make(
        py: Python<'_>,
        handle: &Bound<'_, BufferHandle>,
        device: &Bound<'_, Device>,
        offset: usize,
        length: usize,
        access: &str,
    ) -> PyResult<Registration> {
        let (buffer, access) = (handle.get().buffer()?, self::access(access)?);
        let device = device.get().device.clone();
        let held = outside(py, || buffer.register(&device, offset..offset.saturating_add(length), access))?;
        Ok(Registration { held: Mutex::new(Some(held)) })
    }

    /// Returns the key, or `None` if the registration is closed.
    fn key(&self) -> Option<Key> {
        let held = self.held.lock().ignore_poison();
        held.as_ref().map(|registration| numbers(registration.key()))
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let held = self.held.lock().ignore_poison().take();
        held.map_or(Ok(()), |registration| outside(py, || registration.deregister()))
    }
}

/// A registration cache.
#[pyclass(frozen, module = "hostbuf._hostbuf")]
pub struct Cache {
    cache: Mutex<Option<Arc<RegistrationCache<library::Device>>>>,
}

impl Cache {
    fn open_cache(&self) -> PyResult<Arc<RegistrationCache<library::Device>>> {
        let held = self.cache.lock().ignore_poison();
        held.clone().ok_or_else(|| PyValueError::new_err("the cache is closed"))
    }
}

#[pymethods]
impl Cache {
    #[new]
    fn make(
        py: Python<'_>,
        device: &Bound<'_, Device>,
        registrations: Option<usize>,
        bytes: Option<usize>,
        monitor: Option<&str>,
    ) -> PyResult<Cache> {
        let device = device.get().device.clone();
        let cache = outside(py, || {
            let monitor = match monitor {
                None => MonitorMode::from_environment()?,
                Some("strict") => MonitorMode::Strict,
                Some("required") => MonitorMode::Required,
                Some("explicit") => MonitorMode::Explicit,
                Some(other) => {
                    let what = format!("invalid monitor \"{other}\": expected strict, required or explicit");
                    return Err(Error::Invalid { what });
                }
            };
            let usual = Budget::from_environment()?;
            let budget =
                Budget::new(registrations.unwrap_or(usual.registrations)).bytes(bytes.unwrap_or(usual.bytes));
            Ok(RegistrationCache::new(device, budget, monitor)?)
        })?;
        Ok(Cache { cache: Mutex::new(Some(Arc::new(cache))) })
    }

    fn get(&self, py: Python<'_>, start: usize, length: usize, access: &str) -> PyResult<Lease> {
        let (cache, access) = (self.open_cache()?, self::access(access)?);
        let held = outside(py, || LeaseWithCache::of(cache, start, length, access))?;
        Ok(Lease { held: Mutex::new(Some(held)) })
    }

    fn invalidate(&self, py: Python<'_>, start: usize, length: usize) -> PyResult<()> {
        let cache = self.open_cache()?;
        outside(py, || cache.invalidate(Span::new(start, length)?))
    }

    fn flush(&self, py: Python<'_>) -> PyResult<()> {
        let cache = self.open_cache()?;
        outside(py, || cache.flush())
    }

    /// Returns the statistics as pairs of name and value.
    fn stats(&self) -> PyResult<Vec<(&'static str, u64)>> {
        let stats = self.open_cache()?.stats();
        Ok(vec![
            ("hits", stats.hits),
            ("coalesced", stats.coalesced),
            ("misses", stats.misses),
            ("evictions", stats.evictions),
            ("invalidated", stats.invalidated),
            ("changed", stats.changed),
            ("not_kept", stats.unwatchable + stats.unproven + stats.unwatched + stats.busy),
            ("failures", stats.failures),
            ("leaked", stats.leaked),
            ("over_budget", stats.over_budget),
            ("registrations", stats.registrations as u64),
            ("bytes", stats.bytes as u64),
            ("peak_registrations", stats.peak_registrations as u64),
            ("peak_bytes", stats.peak_bytes as u64),
        ])
    }

    /// Closes the cache. Its registrations end with the last lease.
    fn close(&self, py: Python<'_>) {
        let held = self.cache.lock().ignore_poison().take();
        py.detach(|| drop(held));
    }
}

/// A lease and its cache, in the order in which they are dropped.
struct LeaseWithCache {
    lease: library::Lease<'static, library::Device>,
    _cache: Arc<RegistrationCache<library::Device>>,
}

impl LeaseWithCache {
    fn of(
        cache: Arc<RegistrationCache<library::Device>>,
        start: usize,
        length: usize,
        access: Access,
    ) -> hostbuf::Result<LeaseWithCache> {
        let span = Span::new(start, length)?;
        let lease = cache.get(span.start() as *const u8, span.len(), access)?;
        // SAFETY: the Arc keeps the cache at its address, and the lease is dropped before it.
        let lease =
            unsafe { std::mem::transmute::<library::Lease<'_, _>, library::Lease<'static, _>>(lease) };
        Ok(LeaseWithCache { lease, _cache: cache })
    }
}

/// A lease of a registration in a cache, until it is closed.
#[pyclass(frozen, module = "hostbuf._hostbuf")]
pub struct Lease {
    held: Mutex<Option<LeaseWithCache>>,
}

#[pymethods]
impl Lease {
    /// Returns the key, or `None` if the lease is closed.
    fn key(&self) -> Option<Key> {
        let held = self.held.lock().ignore_poison();
        held.as_ref().map(|held| numbers(held.lease.key()))
    }

    fn close(&self, py: Python<'_>) {
        let held = self.held.lock().ignore_poison().take();
        py.detach(|| drop(held));
    }
}
