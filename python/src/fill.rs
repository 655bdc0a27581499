//! Filling a buffer by a function of the program's.

use std::alloc::Layout;
use std::sync::{Mutex, PoisonError};

use hostbuf::ffi::{self, ScopedArena};
use hostbuf::job::all_or_none;
use hostbuf::{Error, Result};
use pyo3::prelude::*;

use crate::comm::Group;
use crate::error::raised;
use crate::handle::Handle;

/// Gives out a buffer's memory while it is being filled.
#[pyclass(frozen, module = "hostbuf._hostbuf")]
pub struct Arena(ScopedArena);

#[pymethods]
impl Arena {
    /// The address of `size` zero bytes at a multiple of `alignment`.
    fn take(&self, py: Python<'_>, size: &Bound<'_, PyAny>, alignment: usize) -> PyResult<usize> {
        // More than a word can say is more than there is.
        let size = size.extract().unwrap_or(usize::MAX);
        let taken = self.0.with(|arena| match Layout::from_size_align(size, alignment) {
            Ok(layout) => arena.take(layout),
            Err(_) => Err(Error::Full { asked: size as u64, left: arena.left()? }),
        });
        Ok(taken.map_err(|error| raised(py, error))?.as_ptr() as usize)
    }

    /// Bytes that are left.
    fn left(&self, py: Python<'_>) -> PyResult<usize> {
        self.0.with(|arena| Ok(arena.left()? as usize)).map_err(|error| raised(py, error))
    }
}

/// Calls the program's function, which answers the address of the root; what it raises is kept in
/// `failed`.
fn run(arena: &hostbuf::Arena<'_>, fill: &Py<PyAny>, failed: &Mutex<Option<PyErr>>) -> Result<*mut u8> {
    Python::attach(|py| {
        let called = Py::new(py, Arena(ScopedArena::default())).and_then(|given| {
            let call = || fill.call1(py, (&given,)).and_then(|root| root.extract::<usize>(py));
            given.get().0.during(arena, call)
        });
        called.map(|root| root as *mut u8).map_err(|error| {
            let why = format!("the function that fills it raised {error}");
            *failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
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
    let thrown = failed.into_inner().unwrap_or_else(PoisonError::into_inner);
    match (outcome, thrown) {
        (_, Some(error)) => Err(error),
        (Ok(root), None) => Ok(root),
        (Err(error), None) => Err(raised(py, error)),
    }
}

/// Fills the buffer once on this host; the root's address.
#[pyfunction]
pub fn initialize(handle: &Bound<'_, Handle>, fill: &Bound<'_, PyAny>) -> PyResult<usize> {
    let buffer = handle.get().buffer()?;
    filled(handle.py(), fill, |fill, failed| {
        ffi::initialize(&buffer, |arena| run(arena, fill, failed)).map(|root| root as usize)
    })
}

/// Fills the buffer once in the job; the root's address.
#[pyfunction]
pub fn initialize_job(
    handle: &Bound<'_, Handle>,
    comm: &Bound<'_, PyAny>,
    fill: &Bound<'_, PyAny>,
) -> PyResult<usize> {
    let group = Group::of(comm)?;
    let open = handle.get().open();
    let filled = filled(handle.py(), fill, |fill, failed| {
        let buffer = all_or_none(group.ranks(), open)?;
        ffi::initialize_job(&buffer, group.ranks(), |arena| run(arena, fill, failed))
            .map(|root| root as usize)
    });
    group.interrupted().map_or(filled, Err)
}

/// The root's address; `None` while nothing has filled the buffer.
#[pyfunction]
pub fn root(handle: &Bound<'_, Handle>) -> PyResult<Option<usize>> {
    let root = ffi::root(&handle.get().buffer()?).map_err(|error| raised(handle.py(), error))?;
    Ok(root.map(|root| root as usize))
}
