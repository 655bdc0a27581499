//! Files, and the start of their transfers.

use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use hostbuf_os::poison::IgnorePoison;
use hostbuf_staging::{Backend, DeviceTarget, File, FileOptions, cached_pages, drop_cached_pages};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

#[cfg(feature = "cuda")]
use crate::gpu_transfers::{self, TransferStreams};
use crate::host_ring;
use crate::os_error::os_raised;
use crate::pool_error::invalid;
use crate::running_transfer::RunningTransfer;
use crate::transfer::{TransferHandle, wait_for_end};
use crate::transfer_array::{ArrayTarget, KeptArray, release_left};
use crate::transfer_direction::TransferDirection;
use crate::transfer_error::transfer_raised;
use crate::transfer_file::TransferFile;

/// A file for transfers, until it is closed.
#[pyclass(frozen, module = "hostbuf._hostbuf")]
pub struct FileHandle {
    file: Mutex<Option<Arc<TransferFile>>>,
}

/// The memory of an array: the object that keeps it, its address, its length in bytes, the number
/// of its GPU, and the handle of the stream whose work comes before the transfer.
type ArrayArgument = (Py<PyAny>, u64, u64, Option<u32>, Option<usize>);

impl FileHandle {
    fn open_file(&self) -> PyResult<Arc<TransferFile>> {
        let file = self.file.lock().ignore_poison();
        file.clone().ok_or_else(|| PyValueError::new_err("the file is closed"))
    }

    fn start(
        &self,
        py: Python<'_>,
        direction: TransferDirection,
        (object, address, bytes, gpu, before): ArrayArgument,
        offset: u64,
        order: Option<usize>,
    ) -> PyResult<TransferHandle> {
        release_left(py);
        let file = self.open_file()?;
        let kept = KeptArray::new(object);
        let target = ArrayTarget { address, bytes, is_host: gpu.is_none(), _kept: kept.clone() };
        let target = DeviceTarget::new(Arc::new(target));
        let transfer = match gpu {
            None => {
                let ring = host_ring::of_host(py)?;
                py.detach(|| direction.start(&ring, &file, target, offset))
            }
            #[cfg(feature = "cuda")]
            Some(gpu) => {
                let ring = crate::gpu_rings::of_gpu(py, gpu)?.ring;
                let streams = TransferStreams { before, order };
                gpu_transfers::start(py, &ring, &file, (direction, target, offset), streams)?
            }
            #[cfg(not(feature = "cuda"))]
            Some(_) => {
                let _ = (before, order);
                let what = String::from("transfers to a GPU");
                let why = String::from("this build of hostbuf has no support for CUDA");
                return Err(crate::error::raised(py, hostbuf::Error::Unsupported { what, why }));
            }
        };
        let running = RunningTransfer::new(transfer, kept, file.failure.clone());
        file.add(&running);
        Ok(TransferHandle::new(running))
    }
}

#[pymethods]
impl FileHandle {
    #[new]
    fn new(py: Python<'_>, path: PathBuf, write: bool, backend: &str) -> PyResult<FileHandle> {
        let backend: Backend = backend.parse().map_err(|why: String| invalid(py, why))?;
        let opened = py.detach(|| FileOptions::new().backend(backend).write(write).open(&path));
        let file = opened.map_err(|error| os_raised(py, &error, &path))?;
        Ok(FileHandle { file: Mutex::new(Some(TransferFile::new(file))) })
    }

    fn read(
        &self,
        py: Python<'_>,
        array: ArrayArgument,
        offset: u64,
        order: Option<usize>,
    ) -> PyResult<TransferHandle> {
        self.start(py, TransferDirection::Read, array, offset, order)
    }

    fn write(
        &self,
        py: Python<'_>,
        array: ArrayArgument,
        offset: u64,
        order: Option<usize>,
    ) -> PyResult<TransferHandle> {
        self.start(py, TransferDirection::Write, array, offset, order)
    }

    fn size(&self, py: Python<'_>) -> PyResult<u64> {
        let file = self.open_file()?;
        file.file.bytes().map_err(|error| os_raised(py, &error, file.file.path()))
    }

    /// Returns the name of the backend, and the reason why it was chosen.
    fn backend(&self) -> PyResult<(String, String)> {
        let file = self.open_file()?;
        let choice = file.file.backend();
        Ok((choice.backend.to_string(), choice.why.clone()))
    }

    fn fileno(&self) -> PyResult<i32> {
        Ok(self.open_file()?.file.as_std().as_raw_fd())
    }

    fn sync(&self, py: Python<'_>) -> PyResult<()> {
        let file = self.open_file()?;
        py.detach(|| file.file.sync()).map_err(|error| os_raised(py, &error, file.file.path()))
    }

    #[getter]
    fn closed(&self) -> bool {
        self.file.lock().ignore_poison().is_none()
    }

    /// Closes the file after its transfers have ended, which `cancel` lets happen soon. Returns the
    /// error of a transfer whose result nobody has asked for.
    fn close(&self, py: Python<'_>, cancel: bool) -> PyResult<()> {
        release_left(py);
        let Some(file) = self.file.lock().ignore_poison().take() else { return Ok(()) };
        let running = file.running();
        let cancel_all = || running.iter().for_each(|one| one.cancel());
        if cancel {
            py.detach(cancel_all);
        }
        let waited = running.iter().try_for_each(|one| wait_for_end(py, one));
        if let Err(interrupt) = waited {
            py.detach(cancel_all);
            running.iter().try_for_each(|one| wait_for_end(py, one))?;
            return Err(interrupt);
        }
        drop(running);
        let failure = file.failure.take().filter(|_| !cancel);
        failure.map_or(Ok(()), |error| Err(transfer_raised(py, &error)))
    }
}

/// Refuses the name of a backend that does not exist.
#[pyfunction]
pub fn check_backend(py: Python<'_>, name: &str) -> PyResult<()> {
    name.parse::<Backend>().map(drop).map_err(|why| invalid(py, why))
}

/// Returns the number of pages of a file in the page cache, of those that are not written yet, and
/// of all.
#[pyfunction]
pub fn page_cache(py: Python<'_>, path: PathBuf) -> PyResult<(u64, u64, u64)> {
    let pages = with_file(py, &path, |file| cached_pages(file.as_std()))?;
    Ok((pages.cached, pages.dirty, pages.pages))
}

/// Drops the pages of a file from the page cache.
#[pyfunction]
pub fn drop_page_cache(py: Python<'_>, path: PathBuf) -> PyResult<()> {
    with_file(py, &path, |file| drop_cached_pages(file.as_std()))
}

/// Opens a file through the page cache for a call.
fn with_file<T: Send>(
    py: Python<'_>,
    path: &Path,
    call: impl FnOnce(&File) -> io::Result<T> + Send,
) -> PyResult<T> {
    let open = || FileOptions::new().backend(Backend::Posix).open(path);
    let called = py.detach(|| open().and_then(|file| call(&file)));
    called.map_err(|error| os_raised(py, &error, path))
}
