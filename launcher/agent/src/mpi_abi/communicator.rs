//! A communicator of MPI's standard ABI.

#![allow(unsafe_code, reason = "calls functions of C")]

use std::ffi::c_int;
use std::ptr::null_mut;
use std::rc::Rc;

use hostbuf::job::{Collective, Reduce, poll_with_sleeps};
use hostbuf::{Error, Result};

use super::calls::{
    AND, ANY_SOURCE, AbiHandle, BYTE, MAX, MIN, MpiCalls, NO_REQUEST, NO_STATUS, SUM, WORD, WORLD,
};

/// MPI, initialised until drop. Communicators are dropped first.
pub struct StandardMpi {
    calls: Rc<MpiCalls>,
}

impl StandardMpi {
    /// Loads and initialises MPI. It is finalised when the value is dropped, and cannot be
    /// initialised again.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if there is no library with the ABI; [`Error::Collective`].
    pub fn init() -> Result<StandardMpi> {
        let calls = MpiCalls::load()?;
        // SAFETY: no arguments, which MPI allows.
        check("MPI_Init", unsafe { (calls.init)(null_mut(), null_mut()) })?;
        Ok(StandardMpi { calls: Rc::new(calls) })
    }

    /// Duplicates the communicator of all processes of the job. Collective.
    ///
    /// # Errors
    /// [`Error::Collective`].
    pub fn world(&self) -> Result<Box<dyn Collective>> {
        let mut world = WORLD;
        // SAFETY: MPI is initialised.
        check("MPI_Comm_dup", unsafe { (self.calls.comm_dup)(WORLD, &mut world) })?;
        Ok(Box::new(AbiCommunicator::new(self.calls.clone(), world)?))
    }
}

impl Drop for StandardMpi {
    fn drop(&mut self) {
        // SAFETY: MPI is initialised, and no call is in progress.
        unsafe { (self.calls.finalize)() };
    }
}

/// A communicator as a [`Collective`]. Its operations, except splitting, wait by polling with
/// sleeps, since the ranks of the job need the cores.
struct AbiCommunicator {
    calls: Rc<MpiCalls>,
    handle: AbiHandle,
    rank: usize,
    size: usize,
}

impl AbiCommunicator {
    fn new(calls: Rc<MpiCalls>, handle: AbiHandle) -> Result<AbiCommunicator> {
        let (mut rank, mut size) = (0, 0);
        // SAFETY: the communicator is valid.
        check("MPI_Comm_rank", unsafe { (calls.comm_rank)(handle, &mut rank) })?;
        // SAFETY: the communicator is valid.
        check("MPI_Comm_size", unsafe { (calls.comm_size)(handle, &mut size) })?;
        Ok(AbiCommunicator { calls, handle, rank: rank as usize, size: size as usize })
    }

    /// Starts an operation and waits for its end.
    fn complete(&self, operation: &'static str, start: impl FnOnce(*mut AbiHandle) -> c_int) -> Result<()> {
        let mut request = NO_REQUEST;
        check(operation, start(&mut request))?;
        poll_with_sleeps(|| {
            let mut is_done = 0;
            // SAFETY: the request is of the operation, whose memory is borrowed by the caller.
            check(operation, unsafe { (self.calls.test)(&mut request, &mut is_done, NO_STATUS) })?;
            Ok(is_done != 0)
        })
    }
}

impl Collective for AbiCommunicator {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn all_gather(&self, mine: &[u8], all: &mut [u8]) -> Result<()> {
        assert_eq!(all.len(), mine.len() * self.size, "the bytes of all ranks");
        let count = count(mine.len());
        self.complete("MPI_Iallgather", |request| {
            // SAFETY: both slices live until the operation has ended, and `all` has the bytes of
            // all ranks.
            unsafe {
                (self.calls.all_gather)(
                    mine.as_ptr().cast(),
                    count,
                    BYTE,
                    all.as_mut_ptr().cast(),
                    count,
                    BYTE,
                    self.handle,
                    request,
                )
            }
        })
    }

    fn broadcast(&self, bytes: &mut [u8], root: usize) -> Result<()> {
        // The counts of MPI are 32 bits wide.
        for part in bytes.chunks_mut(1 << 30) {
            self.complete("MPI_Ibcast", |request| {
                let (at, count) = (part.as_mut_ptr().cast(), count(part.len()));
                // SAFETY: the slice lives until the operation has ended.
                unsafe { (self.calls.broadcast)(at, count, BYTE, root as c_int, self.handle, request) }
            })?;
        }
        Ok(())
    }

    fn split(&self, color: usize) -> Result<Box<dyn Collective>> {
        let mut part = self.handle;
        let (color, key) = (color as c_int, self.rank as c_int);
        // SAFETY: the communicator is valid.
        check("MPI_Comm_split", unsafe { (self.calls.comm_split)(self.handle, color, key, &mut part) })?;
        Ok(Box::new(AbiCommunicator::new(self.calls.clone(), part)?))
    }

    fn progress(&self) {
        let mut is_there = 0;
        // Any call makes progress. No message with this tag is ever sent.
        // SAFETY: the communicator is valid.
        unsafe { (self.calls.probe)(ANY_SOURCE, 0, self.handle, &mut is_there, NO_STATUS) };
    }

    fn all_reduce(&self, words: &mut [u64], how: Reduce) -> Result<()> {
        let operation = match how {
            Reduce::Min => MIN,
            Reduce::Max => MAX,
            Reduce::Sum => SUM,
            Reduce::And => AND,
            _ => {
                let what = format!("the reduction {how:?} through the standard ABI of MPI");
                return Err(Error::Invalid { what });
            }
        };
        let mine = words.to_vec();
        let count = count(words.len());
        self.complete("MPI_Iallreduce", |request| {
            // SAFETY: both slices live until the operation has ended, and have the same length.
            unsafe {
                (self.calls.all_reduce)(
                    mine.as_ptr().cast(),
                    words.as_mut_ptr().cast(),
                    count,
                    WORD,
                    operation,
                    self.handle,
                    request,
                )
            }
        })
    }
}

impl Drop for AbiCommunicator {
    fn drop(&mut self) {
        // SAFETY: the communicator is valid, and its group drops it at the same point.
        unsafe { (self.calls.comm_free)(&mut self.handle) };
    }
}

/// Returns a count for MPI.
///
/// # Panics
/// If it exceeds 31 bits.
fn count(length: usize) -> c_int {
    c_int::try_from(length).expect("a count of MPI")
}

/// Makes an error of an error code. MPI's default error handler aborts the job before.
fn check(operation: &'static str, code: c_int) -> Result<()> {
    match code {
        0 => Ok(()),
        code => Err(Error::Collective { operation, why: format!("MPI's error code is {code}") }),
    }
}
