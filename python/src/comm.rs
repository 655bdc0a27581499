//! An mpi4py communicator as the group of ranks: by its methods, so that no MPI is linked here.

use std::sync::{Mutex, PoisonError};

use hostbuf::job::{Collective, Solo, all_or_none};
use hostbuf::{Error, Result};
use pyo3::exceptions::{PyException, PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;

use crate::error::outside;

/// MPI counts in 32 bits: the most bytes of one call.
const MOST: usize = 1 << 30;
/// No job has more.
const MOST_RANKS: usize = 1 << 24;

/// A communicator. Each method is called with the interpreter's lock, which the thread takes for
/// it.
pub struct Comm {
    comm: Py<PyAny>,
    /// What was raised by a method and is no error: KeyboardInterrupt, SystemExit.
    interrupted: Mutex<Option<PyErr>>,
    rank: usize,
    size: usize,
    owned: bool,
}

/// Bytes of this process as a `memoryview`, for the time of a call.
fn seen<'py>(py: Python<'py>, bytes: *mut u8, length: usize, writable: bool) -> PyResult<Bound<'py, PyAny>> {
    /// PyBUF_READ and PyBUF_WRITE of the C interface.
    const KINDS: [i32; 2] = [0x100, 0x200];
    // SAFETY: the memory outlives the call for which the view is made; mpi4py keeps no view of what
    // a blocking call was given.
    unsafe {
        let view = ffi::PyMemoryView_FromMemory(bytes.cast(), length as isize, KINDS[usize::from(writable)]);
        Bound::from_owned_ptr_or_err(py, view)
    }
}

/// The end of such views: whoever has kept one has nothing of it.
fn unseen<const N: usize>(views: [&Bound<'_, PyAny>; N]) -> PyResult<()> {
    views.iter().try_for_each(|view| view.call_method0("release").map(drop))
}

impl Comm {
    fn of(comm: Bound<'_, PyAny>, owned: bool) -> PyResult<Comm> {
        let rank = comm.call_method0("Get_rank")?.extract()?;
        let size = comm.call_method0("Get_size")?.extract()?;
        if rank >= size || size > MOST_RANKS {
            return Err(PyValueError::new_err(format!("comm is rank {rank} of {size}")));
        }
        Ok(Comm { comm: comm.unbind(), interrupted: Mutex::new(None), rank, size, owned })
    }

    fn done<T>(
        &self,
        operation: &'static str,
        call: impl FnOnce(Python<'_>, &Bound<'_, PyAny>) -> PyResult<T>,
    ) -> Result<T> {
        Python::attach(|py| {
            call(py, self.comm.bind(py)).map_err(|raised| {
                let why = raised.to_string();
                if !raised.is_instance_of::<PyException>(py) {
                    self.interrupted.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(raised);
                }
                Error::Collective { operation, why }
            })
        })
    }
}

impl Collective for Comm {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn all_gather(&self, mine: &[u8], all: &mut [u8]) -> Result<()> {
        assert_eq!(all.len(), mine.len() * self.size);
        if mine.len() > MOST {
            let why = format!("{} bytes of each rank, and {MOST} is the most", mine.len());
            return Err(Error::Collective { operation: "all_gather", why });
        }
        self.done("all_gather", |py, comm| {
            let mine = seen(py, mine.as_ptr().cast_mut(), mine.len(), false)?;
            let all = seen(py, all.as_mut_ptr(), all.len(), true)?;
            let done = comm.call_method1("Allgather", (&mine, &all)).map(drop);
            unseen([&mine, &all]).and(done)
        })
    }

    fn broadcast(&self, bytes: &mut [u8], root: usize) -> Result<()> {
        for part in bytes.chunks_mut(MOST) {
            self.done("broadcast", |py, comm| {
                let part = seen(py, part.as_mut_ptr(), part.len(), true)?;
                let done = comm.call_method1("Bcast", (&part, root)).map(drop);
                unseen([&part]).and(done)
            })?;
        }
        Ok(())
    }

    fn split(&self, color: usize) -> Result<Box<dyn Collective>> {
        let part =
            self.done("split", |_, comm| Comm::of(comm.call_method1("Split", (color, self.rank))?, true))?;
        Ok(Box::new(part))
    }

    fn progress(&self) {
        // Any call lets messages go on; what it says of them is the program's. Signals are looked
        // at too, so that Ctrl-C is kept.
        let _ = self.done("progress", |py, comm| {
            comm.call_method0("Iprobe")?;
            py.check_signals()
        });
    }
}

impl Drop for Comm {
    fn drop(&mut self) {
        if self.owned {
            // A failure would be MPI's own, and nobody waits for it.
            let _ = self.done("release", |_, comm| comm.call_method0("Free").map(drop));
        }
    }
}

/// The ranks of a caller's communicator; `None`: this process alone.
pub enum Group {
    Solo(Solo),
    Comm(Comm),
}

impl Group {
    /// # Errors
    /// TypeError for what is no communicator.
    pub fn of(comm: &Bound<'_, PyAny>) -> PyResult<Group> {
        if comm.is_none() {
            return Ok(Group::Solo(Solo));
        }
        for method in ["Get_rank", "Get_size", "Allgather", "Bcast", "Split", "Iprobe"] {
            if !comm.hasattr(method)? {
                let given = comm.get_type().qualname()?;
                return Err(PyTypeError::new_err(format!(
                    "comm is of the type {given} without a method {method}: an mpi4py communicator is meant, or None for this process alone"
                )));
            }
        }
        if comm.hasattr("Is_inter")? && comm.call_method0("Is_inter")?.is_truthy()? {
            return Err(PyValueError::new_err(
                "comm is an intercommunicator: its ranks are in two groups, of which each would see only the other",
            ));
        }
        Ok(Group::Comm(Comm::of(comm.clone(), false)?))
    }

    /// Carries out work of the library's over the group, without the interpreter's lock.
    pub fn outside<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&dyn Collective) -> Result<T> + Send,
    ) -> PyResult<T> {
        let done = outside(py, || work(self.ranks()));
        self.interrupted().map_or(done, Err)
    }

    /// The same with what this rank was given: all go on, or none does. What was wrong with it is
    /// raised here as it was.
    pub fn together<G: Send, T: Send>(
        &self,
        py: Python<'_>,
        given: PyResult<G>,
        work: impl FnOnce(&dyn Collective, G) -> Result<T> + Send,
    ) -> PyResult<T> {
        let (given, own) = match given {
            Ok(given) => (Ok(given), None),
            Err(own) => (Err(Error::Invalid { what: own.value(py).to_string() }), Some(own)),
        };
        let done = self.outside(py, |ranks| work(ranks, all_or_none(ranks, given)?));
        own.map_or(done, Err)
    }

    /// What a method of the communicator has raised that is no error: it goes before what became of
    /// the work.
    pub fn interrupted(&self) -> Option<PyErr> {
        match self {
            Group::Solo(_) => None,
            Group::Comm(comm) => comm.interrupted.lock().unwrap_or_else(PoisonError::into_inner).take(),
        }
    }

    pub fn ranks(&self) -> &dyn Collective {
        match self {
            Group::Solo(solo) => solo,
            Group::Comm(comm) => comm,
        }
    }
}
