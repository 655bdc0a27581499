//! An mpi4py communicator as a group of ranks. It calls the methods of the communicator, so that
//! hostbuf links no MPI.

#![allow(unsafe_code, reason = "the operands are views of memory of the caller")]

use std::sync::Mutex;

use hostbuf::job::{Collective, Solo, all_or_none};
use hostbuf::{Error, Result};
use hostbuf_os::poison::IgnorePoison;
use pyo3::exceptions::{PyException, PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;

use crate::error::outside;

/// The maximum number of bytes of one call, since MPI counts in 32 bits.
const MAX_BYTES: usize = 1 << 30;
/// The maximum number of ranks of a job.
const MAX_RANKS: usize = 1 << 24;

/// A communicator. The thread takes the interpreter's lock for each call of a method.
pub struct Comm {
    comm: Py<PyAny>,
    /// An exception of a method that is no error, such as KeyboardInterrupt or SystemExit.
    interrupted: Mutex<Option<PyErr>>,
    rank: usize,
    size: usize,
    owned: bool,
}

/// Makes a `memoryview` of bytes of this process, for the time of a call.
fn memory_view<'py>(
    py: Python<'py>,
    bytes: *mut u8,
    length: usize,
    writable: bool,
) -> PyResult<Bound<'py, PyAny>> {
    /// PyBUF_READ and PyBUF_WRITE of the C interface.
    const KINDS: [i32; 2] = [0x100, 0x200];
    // SAFETY: the memory outlives the call for which the view is made; mpi4py keeps no view after a
    // blocking call.
    unsafe {
        let view = ffi::PyMemoryView_FromMemory(bytes.cast(), length as isize, KINDS[usize::from(writable)]);
        Bound::from_owned_ptr_or_err(py, view)
    }
}

/// Releases such views, so that kept references to them are unusable.
fn release<const N: usize>(views: [&Bound<'_, PyAny>; N]) -> PyResult<()> {
    views.iter().try_for_each(|view| view.call_method0("release").map(drop))
}

impl Comm {
    fn of(comm: Bound<'_, PyAny>, owned: bool) -> PyResult<Comm> {
        let rank = comm.call_method0("Get_rank")?.extract()?;
        let size = comm.call_method0("Get_size")?.extract()?;
        if rank >= size || size > MAX_RANKS {
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
                    self.interrupted.lock().ignore_poison().get_or_insert(raised);
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
        if mine.len() > MAX_BYTES {
            let why = format!("{} bytes per rank exceed the maximum of {MAX_BYTES}", mine.len());
            return Err(Error::Collective { operation: "all_gather", why });
        }
        self.done("all_gather", |py, comm| {
            let mine = memory_view(py, mine.as_ptr().cast_mut(), mine.len(), false)?;
            let all = memory_view(py, all.as_mut_ptr(), all.len(), true)?;
            let done = comm.call_method1("Allgather", (&mine, &all)).map(drop);
            release([&mine, &all]).and(done)
        })
    }

    fn broadcast(&self, bytes: &mut [u8], root: usize) -> Result<()> {
        for part in bytes.chunks_mut(MAX_BYTES) {
            self.done("broadcast", |py, comm| {
                let part = memory_view(py, part.as_mut_ptr(), part.len(), true)?;
                let done = comm.call_method1("Bcast", (&part, root)).map(drop);
                release([&part]).and(done)
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
        // Every MPI call drives progress; the result of the probe is not needed. Signals are
        // checked too, so that Ctrl-C works.
        let _ = self.done("progress", |py, comm| {
            comm.call_method0("Iprobe")?;
            py.check_signals()
        });
    }
}

impl Drop for Comm {
    fn drop(&mut self) {
        if self.owned {
            // A failure of MPI cannot be reported from a drop.
            let _ = self.done("release", |_, comm| comm.call_method0("Free").map(drop));
        }
    }
}

/// The ranks of the caller's communicator, or this process alone for `None`.
pub enum RankGroup {
    Solo(Solo),
    Comm(Comm),
}

impl RankGroup {
    /// Makes the group of a communicator.
    ///
    /// # Errors
    /// TypeError if `comm` is no communicator.
    pub fn of(comm: &Bound<'_, PyAny>) -> PyResult<RankGroup> {
        if comm.is_none() {
            return Ok(RankGroup::Solo(Solo));
        }
        for method in ["Get_rank", "Get_size", "Allgather", "Bcast", "Split", "Iprobe"] {
            if !comm.hasattr(method)? {
                let given = comm.get_type().qualname()?;
                return Err(PyTypeError::new_err(format!(
                    "comm is a {given}, which has no method {method}: expected an mpi4py communicator, or None for this process alone"
                )));
            }
        }
        if comm.hasattr("Is_inter")? && comm.call_method0("Is_inter")?.is_truthy()? {
            return Err(PyValueError::new_err(
                "comm is an intercommunicator, whose two groups see only the ranks of each other: expected an intracommunicator",
            ));
        }
        Ok(RankGroup::Comm(Comm::of(comm.clone(), false)?))
    }

    /// Runs a call of the library over the group without the interpreter's lock.
    pub fn outside<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&dyn Collective) -> Result<T> + Send,
    ) -> PyResult<T> {
        let done = outside(py, || work(self.ranks()));
        self.interrupted().map_or(done, Err)
    }

    /// Runs a collective call of the library with this rank's arguments, as [`outside`]. If the
    /// arguments of one rank are invalid, no rank runs the call. Invalid arguments of this rank
    /// raise their original exception.
    ///
    /// [`outside`]: RankGroup::outside
    pub fn collective<G: Send, T: Send>(
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

    /// Takes the exception of a method of the communicator that is no error. It takes precedence
    /// over the result of the call.
    pub fn interrupted(&self) -> Option<PyErr> {
        match self {
            RankGroup::Solo(_) => None,
            RankGroup::Comm(comm) => comm.interrupted.lock().ignore_poison().take(),
        }
    }

    pub fn ranks(&self) -> &dyn Collective {
        match self {
            RankGroup::Solo(solo) => solo,
            RankGroup::Comm(comm) => comm,
        }
    }
}
