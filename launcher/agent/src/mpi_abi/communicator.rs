//! A communicator of MPI's standard ABI.

#![allow(unsafe_code, reason = "calls functions of C")]

use std::ffi::c_int;
use std::ptr::null_mut;
use std::rc::Rc;

use hostbuf::job::{Collective, Reduce, SignedWords, poll_with_sleeps};
use hostbuf::{Error, Result};

use super::calls::{
    AND, ANY_SOURCE, AbiHandle, BYTE, FUNNELED, MAX, MIN, MpiCalls, NO_REQUEST, NO_STATUS, SIGNED_WORD, SUM,
    UNSIGNED_WORD, WORLD,
};

/// MPI, initialised until this value and all of its communicators are dropped.
pub struct StandardMpi(Rc<InitializedMpi>);

/// MPI between `MPI_Init_thread` and `MPI_Finalize`.
struct InitializedMpi {
    calls: MpiCalls,
}

impl StandardMpi {
    /// Loads and initialises MPI with `MPI_THREAD_FUNNELED`: only this thread may call it. It
    /// cannot be initialised a second time.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if there is no library with the ABI; [`Error::Collective`].
    pub fn init() -> Result<StandardMpi> {
        let calls = MpiCalls::load()?;
        // A lower level suffices too, since the other threads make no calls of MPI.
        let mut level = 0;
        // SAFETY: no arguments, which MPI allows.
        let code = unsafe { (calls.init_thread)(null_mut(), null_mut(), FUNNELED, &mut level) };
        check("MPI_Init_thread", code)?;
        Ok(StandardMpi(Rc::new(InitializedMpi { calls })))
    }

    /// Duplicates the communicator of all processes of the job. Collective.
    ///
    /// # Errors
    /// [`Error::Collective`].
    pub fn world(&self) -> Result<Box<dyn Collective>> {
        let mut world = WORLD;
        // SAFETY: MPI is initialised.
        check("MPI_Comm_dup", unsafe { (self.0.calls.comm_dup)(WORLD, &mut world) })?;
        Ok(Box::new(AbiCommunicator::new(self.0.clone(), world)?))
    }
}

impl Drop for InitializedMpi {
    fn drop(&mut self) {
        // SAFETY: MPI is initialised, and there is no communicator of it.
        unsafe { (self.calls.finalize)() };
    }
}

/// An integer type that MPI can reduce.
trait AbiWord {
    /// Its datatype in MPI.
    const TYPE: AbiHandle;
}

impl AbiWord for u64 {
    const TYPE: AbiHandle = UNSIGNED_WORD;
}

impl AbiWord for i64 {
    const TYPE: AbiHandle = SIGNED_WORD;
}

/// A communicator as a [`Collective`]. Its operations, except splitting, wait by polling with
/// sleeps, since the ranks of the job need the cores.
struct AbiCommunicator {
    mpi: Rc<InitializedMpi>,
    handle: AbiHandle,
    rank: usize,
    size: usize,
}

impl AbiCommunicator {
    fn new(mpi: Rc<InitializedMpi>, handle: AbiHandle) -> Result<AbiCommunicator> {
        let (mut rank, mut size) = (0, 0);
        // SAFETY: the communicator is valid.
        check("MPI_Comm_rank", unsafe { (mpi.calls.comm_rank)(handle, &mut rank) })?;
        // SAFETY: the communicator is valid.
        check("MPI_Comm_size", unsafe { (mpi.calls.comm_size)(handle, &mut size) })?;
        Ok(AbiCommunicator { mpi, handle, rank: rank as usize, size: size as usize })
    }

    /// Reduces to the minimum or the maximum.
    fn order(&self, words: &mut [u64], operation: AbiHandle) -> Result<()> {
        let mine = SignedWords::from_unsigned(words);
        let mut all = mine.clone();
        self.reduce(mine.as_slice(), all.as_mut_slice(), operation)?;
        all.write_to(words);
        Ok(())
    }

    /// Reduces the words of all ranks.
    ///
    /// # Panics
    /// If the lengths differ.
    fn reduce<W: AbiWord>(&self, mine: &[W], all: &mut [W], operation: AbiHandle) -> Result<()> {
        assert_eq!(mine.len(), all.len(), "the number of words");
        let (from, to, count) = (mine.as_ptr().cast(), all.as_mut_ptr().cast(), count(mine.len()));
        self.complete("MPI_Iallreduce", |request| {
            let all_reduce = self.mpi.calls.all_reduce;
            // SAFETY: both slices live until the operation has ended, and have `count` words.
            unsafe { all_reduce(from, to, count, W::TYPE, operation, self.handle, request) }
        })
    }

    /// Starts an operation and waits for its end.
    fn complete(&self, operation: &'static str, start: impl FnOnce(*mut AbiHandle) -> c_int) -> Result<()> {
        let mut request = NO_REQUEST;
        check(operation, start(&mut request))?;
        poll_with_sleeps(|| {
            let mut is_done = 0;
            // SAFETY: the request is of the operation, whose memory is borrowed by the caller.
            check(operation, unsafe { (self.mpi.calls.test)(&mut request, &mut is_done, NO_STATUS) })?;
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
                (self.mpi.calls.all_gather)(
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
                unsafe { (self.mpi.calls.broadcast)(at, count, BYTE, root as c_int, self.handle, request) }
            })?;
        }
        Ok(())
    }

    fn split(&self, color: usize) -> Result<Box<dyn Collective>> {
        let mut part = self.handle;
        let (color, key) = (color as c_int, self.rank as c_int);
        // SAFETY: the communicator is valid.
        check("MPI_Comm_split", unsafe { (self.mpi.calls.comm_split)(self.handle, color, key, &mut part) })?;
        Ok(Box::new(AbiCommunicator::new(self.mpi.clone(), part)?))
    }

    fn progress(&self) {
        let mut is_there = 0;
        // Any call makes progress. No message with this tag is ever sent.
        // SAFETY: the communicator is valid.
        unsafe { (self.mpi.calls.probe)(ANY_SOURCE, 0, self.handle, &mut is_there, NO_STATUS) };
    }

    fn all_reduce(&self, words: &mut [u64], how: Reduce) -> Result<()> {
        match how {
            Reduce::Min => self.order(words, MIN),
            Reduce::Max => self.order(words, MAX),
            Reduce::Sum | Reduce::And => {
                let mine = words.to_vec();
                self.reduce(&mine, words, if how == Reduce::Sum { SUM } else { AND })
            }
            _ => {
                let what = format!("the reduction {how:?} through the standard ABI of MPI");
                Err(Error::Invalid { what })
            }
        }
    }
}

impl Drop for AbiCommunicator {
    fn drop(&mut self) {
        // SAFETY: the communicator is valid, and its group drops it at the same point.
        unsafe { (self.mpi.calls.comm_free)(&mut self.handle) };
    }
}

/// Returns a count for MPI.
///
/// # Panics
/// If it exceeds 31 bits.
fn count(length: usize) -> c_int {
    c_int::try_from(length).expect("a count of MPI")
}

/// Converts an error code of MPI. MPI's default error handler aborts the job before the call
/// returns.
fn check(operation: &'static str, code: c_int) -> Result<()> {
    match code {
        0 => Ok(()),
        code => Err(Error::Collective { operation, why: format!("MPI's error code is {code}") }),
    }
}
