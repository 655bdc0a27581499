//! Fills a buffer with a function of the program.

use std::alloc::Layout;
use std::sync::Mutex;

use hostbuf::ffi::{self, ScopedArena};
use hostbuf::job::all_or_none;
use hostbuf::{Error, Result};
use hostbuf_os::poison::IgnorePoison;
use pyo3::prelude::*;

use crate::comm::RankGroup;
use crate::error::raised;
use crate::handle::BufferHandle;

/// The allocator of a buffer's memory while it is being filled.
#[pyclass(frozen, module = "hostbuf._hostbuf")]
pub struct Arena(ScopedArena);

#[pymethods]
impl Arena {
    /// Allocates `size` zero bytes at a multiple of `alignment`, and returns their address.
    fn take(&self, py: Python<'_>, size: &Bound<'_, PyAny>, alignment: usize) -> PyResult<usize> {
        // A size above 64 bits exceeds the free bytes in any case.
        let size = size.extract().unwrap_or(usize::MAX);
        let taken = self.0.with(|arena| match Layout::from_size_align(size, alignment) {
            Ok(layout) => arena.take(layout),
            Err(_) => Err(Error::Full { requested: size as u64, left: arena.left()? }),
        });
        Ok(taken.map_err(|error| raised(py, error))?.as_ptr() as usize)
    }

    /// Returns the number of free bytes.
    fn left(&self, py: Python<'_>) -> PyResult<usize> {
        self.0.with(|arena| Ok(arena.left()? as usize)).map_err(|error| raised(py, error))
    }
}

/// Calls the program's function, which returns the address of the root. Stores its exception in
/// `failed`.
fn run(arena: &hostbuf::Arena<'_>, fill: &Py<PyAny>, failed: &Mutex<Option<PyErr>>) -> Result<*mut u8> {
    Python::attach(|py| {
        let called = Py::new(py, Arena(ScopedArena::default())).and_then(|given| {
            let call = || fill.call1(py, (&given,)).and_then(|root| root.extract::<usize>(py));
            given.get().0.during(arena, call)
        });
        called.map(|root| root as *mut u8).map_err(|error| {
            let why = format!("the fill function raised {error}");
            *failed.lock().ignore_poison() = Some(error);
            Error::Fill { why }
        })
    })
}

fn filled(
    py: Python<'_>,
    fill: &Bound<'_, PyAny>,
    work: impl FnOnce(&Py<PyAny>, &Mutex<Option<PyErr>>) -> Result<usize> + Send,
) -> PyResult<usize> {
    let (fill, failed) = (fill.clone().unbind(), Mutex::new(None));
    let outcome = py.detach(|| work(&fill, &failed));
    let thrown = failed.into_inner().ignore_poison();
    match (outcome, thrown) {
        (_, Some(error)) => Err(error),
        (Ok(root), None) => Ok(root),
        (Err(error), None) => Err(raised(py, error)),
    }
}

/// Fills the buffer once on this host. Returns the root's address.
#[pyfunction]
pub fn initialize(handle: &Bound<'_, BufferHandle>, fill: &Bound<'_, PyAny>) -> PyResult<usize> {
    let buffer = handle.get().buffer()?;
    filled(handle.py(), fill, |fill, failed| {
        ffi::initialize(&buffer, |arena| run(arena, fill, failed)).map(|root| root as usize)
    })
}

/// Fills the buffer once in the job. Returns the root's address.
#[pyfunction]
pub fn initialize_job(
    handle: &Bound<'_, BufferHandle>,
    comm: &Bound<'_, PyAny>,
    fill: &Bound<'_, PyAny>,
) -> PyResult<usize> {
    let group = RankGroup::of(comm)?;
    let open = handle.get().open();
    let filled = filled(handle.py(), fill, |fill, failed| {
        let buffer = all_or_none(group.ranks(), open)?;
        ffi::initialize_job(&buffer, group.ranks(), |arena| run(arena, fill, failed))
            .map(|root| root as usize)
    });
    group.interrupted().map_or(filled, Err)
}

/// Returns the root's address, or `None` while the buffer is not filled.
#[pyfunction]
pub fn root(handle: &Bound<'_, BufferHandle>) -> PyResult<Option<usize>> {
    let root = ffi::root(&handle.get().buffer()?).map_err(|error| raised(handle.py(), error))?;
    Ok(root.map(|root| root as usize))
}
