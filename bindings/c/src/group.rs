//! Groups of ranks of the caller: a table of functions, so that this library links no MPI.

#![allow(unsafe_code, reason = "the functions are called by C, and call functions of the caller")]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::MaybeUninit;

use library::job::{Collective, Reduce, Solo, TEXT_MAX};
use library::sized_struct::{self, MAX_SIZE, SizedInput};
use library::{Error, Result};

use crate::pointers::{output, read};
use crate::status::{CallError, CallResult, agree, argument, call, hostbuf_status};

/// The operation of `all_reduce`.
#[repr(C)]
#[derive(Clone, Copy)]
pub enum hostbuf_reduce {
    /// The minimum.
    HOSTBUF_MIN = 0,
    /// The maximum.
    HOSTBUF_MAX = 1,
    /// The wrapping sum.
    HOSTBUF_SUM = 2,
    /// The bitwise and.
    HOSTBUF_AND = 3,
}

/// A group of ranks, as a table of collective functions of the program. hostbuf_mpi.h makes one
/// from an MPI communicator.
///
/// The functions return 0 on success. hostbuf calls them in the thread that calls hostbuf, and all
/// ranks of the group call them in the same order. They must not throw exceptions or call
/// `longjmp`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct hostbuf_collective {
    /// The size of this structure: initialize it with `HOSTBUF_COLLECTIVE_INIT`.
    pub struct_size: usize,
    /// The first argument of each function.
    pub context: *mut c_void,
    /// The rank of this process.
    pub rank: usize,
    /// The number of ranks.
    pub size: usize,
    /// Gathers the `bytes` bytes at `mine` of all ranks into `all`, in the order of the ranks.
    pub all_gather: Option<
        unsafe extern "C" fn(
            context: *mut c_void,
            mine: *const c_void,
            bytes: usize,
            all: *mut c_void,
        ) -> c_int,
    >,
    /// Sends the `bytes` bytes at `data` of rank `root` to all ranks.
    pub broadcast: Option<
        unsafe extern "C" fn(context: *mut c_void, data: *mut c_void, bytes: usize, root: usize) -> c_int,
    >,
    /// Writes the group of the ranks with the same `color`, in the order of their ranks, to `part`.
    /// The new group has a context of its own.
    pub split: Option<
        unsafe extern "C" fn(context: *mut c_void, color: usize, part: *mut hostbuf_collective) -> c_int,
    >,
    /// Combines `count` words of all ranks in place. If it is null, hostbuf uses `all_gather`.
    pub all_reduce: Option<
        unsafe extern "C" fn(
            context: *mut c_void,
            words: *mut u64,
            count: usize,
            how: hostbuf_reduce,
        ) -> c_int,
    >,
    /// Drives the progress of messages while this rank waits. Null if that is not needed.
    pub progress: Option<unsafe extern "C" fn(context: *mut c_void)>,
    /// Releases a group that `split` made. Null if that is not needed.
    pub release: Option<unsafe extern "C" fn(context: *mut c_void)>,
    /// Writes the meaning of a returned code to `text`, at most `size` bytes with the NUL. Null if
    /// the codes have no description.
    pub describe:
        Option<unsafe extern "C" fn(context: *mut c_void, code: c_int, text: *mut c_char, size: usize)>,
}

type Describe = unsafe extern "C" fn(context: *mut c_void, code: c_int, text: *mut c_char, size: usize);

sized_struct!(hostbuf_collective, "HOSTBUF_COLLECTIVE_INIT", last: describe: Option<Describe>);

// SAFETY: numbers, pointers and functions, which may be null.
unsafe impl SizedInput for hostbuf_collective {
    const DEFAULT: hostbuf_collective = hostbuf_collective {
        struct_size: size_of::<hostbuf_collective>(),
        context: std::ptr::null_mut(),
        rank: 0,
        size: 0,
        all_gather: None,
        broadcast: None,
        split: None,
        all_reduce: None,
        progress: None,
        release: None,
        describe: None,
    };
}

/// A group of the caller for the time of a call, or a group that `split` made.
struct CallerGroup {
    table: hostbuf_collective,
    /// True for a group that `split` made, which is released when this is dropped.
    owned: bool,
}

impl Drop for CallerGroup {
    fn drop(&mut self) {
        if let (true, Some(release)) = (self.owned, self.table.release) {
            // SAFETY: split() made the context, and it is released once.
            unsafe { release(self.table.context) };
        }
    }
}

impl CallerGroup {
    fn done(&self, operation: &'static str, code: c_int) -> Result<()> {
        if code == 0 {
            return Ok(());
        }
        let mut text = [0u8; TEXT_MAX];
        if let Some(describe) = self.table.describe {
            // SAFETY: `text` is longer than the size that is passed; its last byte stays NUL.
            unsafe { describe(self.table.context, code, text.as_mut_ptr().cast(), text.len() - 1) };
        }
        let said = CStr::from_bytes_until_nul(&text).map(|text| text.to_string_lossy()).unwrap_or_default();
        let why = match said.trim() {
            "" => format!("the program's function returned {code}"),
            said => format!("{said} ({code})"),
        };
        Err(Error::Collective { operation, why })
    }
}

/// A larger number of ranks is an uninitialised field.
const MAX_RANKS: usize = 1 << 24;

/// The reason why the required functions of a table are not null.
const CHECKED: &str = "`defect` has checked the table";

impl Collective for CallerGroup {
    fn rank(&self) -> usize {
        self.table.rank
    }

    fn size(&self) -> usize {
        self.table.size
    }

    fn all_gather(&self, mine: &[u8], all: &mut [u8]) -> Result<()> {
        assert_eq!(all.len(), mine.len() * self.size());
        let gather = self.table.all_gather.expect(CHECKED);
        // SAFETY: `all` has the bytes of all ranks.
        let code =
            unsafe { gather(self.table.context, mine.as_ptr().cast(), mine.len(), all.as_mut_ptr().cast()) };
        self.done("all_gather", code)
    }

    fn broadcast(&self, bytes: &mut [u8], root: usize) -> Result<()> {
        let broadcast = self.table.broadcast.expect(CHECKED);
        // SAFETY: `bytes` has the length that is passed.
        let code = unsafe { broadcast(self.table.context, bytes.as_mut_ptr().cast(), bytes.len(), root) };
        self.done("broadcast", code)
    }

    fn split(&self, color: usize) -> Result<Box<dyn Collective>> {
        let initial = hostbuf_collective { context: std::ptr::null_mut(), release: None, ..self.table };
        // The caller's struct may be larger than this one. The unknown fields are 0.
        let mut room = [0u64; MAX_SIZE / 8];
        let part = room.as_mut_ptr().cast::<hostbuf_collective>();
        let split = self.table.split.expect(CHECKED);
        // SAFETY: `room` is local and has room for a struct of any accepted size.
        let code = unsafe {
            part.write(initial);
            split(self.table.context, color, part)
        };
        self.done("split", code)?;
        // SAFETY: as above.
        let table = unsafe { sized_struct::read(part.cast_const(), "part") };
        let table = table.map_err(|why| Error::Collective { operation: "split", why })?;
        let part = CallerGroup { table, owned: true };
        match part.table.defect() {
            None => Ok(Box::new(part)),
            Some(why) => Err(Error::Collective { operation: "split", why }),
        }
    }

    fn all_reduce(&self, words: &mut [u64], how: Reduce) -> Result<()> {
        let Some(reduce) = self.table.all_reduce else { return Gathered(self).all_reduce(words, how) };
        let how = match how {
            Reduce::Min => hostbuf_reduce::HOSTBUF_MIN,
            Reduce::Max => hostbuf_reduce::HOSTBUF_MAX,
            Reduce::Sum => hostbuf_reduce::HOSTBUF_SUM,
            Reduce::And => hostbuf_reduce::HOSTBUF_AND,
            // The function of the program does not know the operation.
            _ => return Gathered(self).all_reduce(words, how),
        };
        // SAFETY: `words` has the length that is passed.
        let code = unsafe { reduce(self.table.context, words.as_mut_ptr(), words.len(), how) };
        self.done("all_reduce", code)
    }

    fn progress(&self) {
        if let Some(progress) = self.table.progress {
            // SAFETY: the caller's function with its context.
            unsafe { progress(self.table.context) };
        }
    }
}

/// A group of the caller that uses the default `all_reduce`, which calls `all_gather`.
struct Gathered<'a>(&'a CallerGroup);

impl Collective for Gathered<'_> {
    fn rank(&self) -> usize {
        self.0.rank()
    }

    fn size(&self) -> usize {
        self.0.size()
    }

    fn all_gather(&self, mine: &[u8], all: &mut [u8]) -> Result<()> {
        self.0.all_gather(mine, all)
    }

    fn broadcast(&self, bytes: &mut [u8], root: usize) -> Result<()> {
        self.0.broadcast(bytes, root)
    }

    fn split(&self, color: usize) -> Result<Box<dyn Collective>> {
        self.0.split(color)
    }
}

impl hostbuf_collective {
    /// Returns a description of the first defect of the table, or `None` if it is usable.
    fn defect(&self) -> Option<String> {
        let missing = [
            ("all_gather", self.all_gather.is_none()),
            ("broadcast", self.broadcast.is_none()),
            ("split", self.split.is_none()),
        ];
        if let Some((name, _)) = missing.iter().find(|(_, missing)| *missing) {
            return Some(format!("the collective has no function {name}"));
        }
        let invalid = self.rank >= self.size || self.size > MAX_RANKS;
        invalid.then(|| format!("the collective is rank {} of {}", self.rank, self.size))
    }
}

/// Converts a group of the caller. Null is the group of this process alone.
///
/// # Safety
/// `table` is null, or a table whose functions conform to its documentation and are valid as long
/// as the result is used.
pub unsafe fn group<'a>(table: *const hostbuf_collective) -> CallResult<Box<dyn Collective + 'a>> {
    if table.is_null() {
        return Ok(Box::new(Solo));
    }
    // SAFETY: by the contract of this function.
    let table = unsafe { read(table, "group") }?;
    match table.defect() {
        None => Ok(Box::new(CallerGroup { table, owned: false })),
        Some(why) => Err(argument(why)),
    }
}

/// Tests a group: calls each function and compares its results with the expected ones. Use it to
/// test a table of your own. Collective: all ranks run all tests, and each rank reports the first
/// error that it found.
// Safety: `group` is null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hostbuf_try_collective(group: *const hostbuf_collective) -> hostbuf_status {
    call(|| {
        // SAFETY: by the contract of this function.
        let group = unsafe { self::group(group) }?;
        let (rank, size) = (group.rank(), group.size());
        let mut results = vec![functions(&*group)];
        results.push(group.split(rank % 2).map_err(CallError::from).and_then(|part| {
            // The other ranks of the part call its functions too.
            let worked = functions(&*part);
            match (part.rank(), part.size()) == (rank / 2, (size + 1 - rank % 2) / 2) {
                true => worked,
                false => Err(wrong("split")),
            }
        }));
        results.into_iter().collect()
    })
}

fn wrong(function: &str) -> CallError {
    argument(format!("the collective's {function} returned a wrong result"))
}

/// Tests all functions of a group except `split`. Returns the first error.
fn functions(group: &dyn Collective) -> CallResult<()> {
    let (rank, size) = (group.rank(), group.size());
    let mut all = vec![0u8; 8 * size];
    let gathered = group.all_gather(&(rank as u64).to_ne_bytes(), &mut all).map_err(CallError::from);
    let is_correct =
        |bytes: &[u8]| (0..size).all(|other| bytes[8 * other..][..8] == (other as u64).to_ne_bytes());
    let gathered = gathered.and_then(|()| is_correct(&all).then_some(()).ok_or_else(|| wrong("all_gather")));
    let mut word = (rank as u64 + 7).to_ne_bytes();
    let sent = group.broadcast(&mut word, size - 1).map_err(CallError::from);
    let is_last = u64::from_ne_bytes(word) == size as u64 + 6;
    let mut found = gathered.and(sent.and_then(|()| is_last.then_some(()).ok_or_else(|| wrong("broadcast"))));
    let top = 1u64 << 63;
    for (how, mine, wanted) in [
        (Reduce::Min, top + rank as u64, top),
        (Reduce::Max, if rank == 0 { u64::MAX } else { 5 }, u64::MAX),
        (Reduce::Sum, 3, 3 * size as u64),
        (Reduce::And, if rank == 0 { 6 } else { 14 }, 6),
    ] {
        let mut words = [mine, 0];
        let reduced = group.all_reduce(&mut words, how).map_err(CallError::from);
        let is_it = words == [wanted, 0];
        found = found.and(reduced.and_then(|()| is_it.then_some(()).ok_or_else(|| wrong("all_reduce"))));
    }
    found
}

/// Sets `leads` to whether this process is the leader of its host, the lowest rank of `group`
/// there. Collective.
// Safety: `leads` is null or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hostbuf_leads(
    group: *const hostbuf_collective,
    leads: Option<&mut MaybeUninit<bool>>,
) -> hostbuf_status {
    call(|| {
        // SAFETY: by the contract of this function.
        let group = unsafe { self::group(group) }?;
        *agree(&*group, output(leads, "leads", false))? = library::job::Hosts::new(&*group)?.leads();
        Ok(())
    })
}
