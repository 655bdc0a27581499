//! The caller's ranks: a table of functions, so that this library never links an MPI.

use std::ffi::{CStr, c_char, c_int, c_void};

use library::job::{Collective, Reduce, Solo};
use library::{Error, Result};

use crate::status::{Outcome, Trouble, argument, call, given, hostbuf_status, place, together};

/// How `all_reduce` combines words.
#[repr(C)]
#[derive(Clone, Copy)]
pub enum hostbuf_reduce {
    /// The least.
    HOSTBUF_MIN = 0,
    /// The greatest.
    HOSTBUF_MAX = 1,
    /// The sum, wrapping.
    HOSTBUF_SUM = 2,
    /// Bit by bit.
    HOSTBUF_AND = 3,
}

/// A group of ranks that can act together, in functions of the program's own. hostbuf_mpi.h makes
/// one of an MPI communicator.
///
/// The functions answer 0 when they went well. They are called in the thread that calls hostbuf, by
/// all ranks of the group in the same order. They must neither throw nor jump out.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct hostbuf_collective {
    /// Handed to each function.
    pub context: *mut c_void,
    /// This process's rank, and how many there are.
    pub rank: usize,
    pub size: usize,
    /// Everybody's `bytes` bytes at `mine`, in the order of the ranks, into `all`.
    pub all_gather: Option<
        unsafe extern "C" fn(
            context: *mut c_void,
            mine: *const c_void,
            bytes: usize,
            all: *mut c_void,
        ) -> c_int,
    >,
    /// The `bytes` bytes at `data` of rank `root` to everybody.
    pub broadcast: Option<
        unsafe extern "C" fn(context: *mut c_void, data: *mut c_void, bytes: usize, root: usize) -> c_int,
    >,
    /// The ranks that name the same `color`, in the order of their ranks, into `part`, which has a
    /// context of its own.
    pub split: Option<
        unsafe extern "C" fn(context: *mut c_void, color: usize, part: *mut hostbuf_collective) -> c_int,
    >,
    /// `count` words combined over all ranks, in place. Null: made of `all_gather`.
    pub all_reduce: Option<
        unsafe extern "C" fn(
            context: *mut c_void,
            words: *mut u64,
            count: usize,
            how: hostbuf_reduce,
        ) -> c_int,
    >,
    /// Lets messages of others go on while this rank waits. Null: nothing has to be done for that.
    pub progress: Option<unsafe extern "C" fn(context: *mut c_void)>,
    /// Ends a part that `split` made. Null: nothing to do.
    pub release: Option<unsafe extern "C" fn(context: *mut c_void)>,
    /// What the number that a function answered means, as text of at most `size` bytes with the
    /// NUL. Null: nobody knows.
    pub describe:
        Option<unsafe extern "C" fn(context: *mut c_void, code: c_int, text: *mut c_char, size: usize)>,
}

/// A caller's group, for the time of a call; or a part of one, which is released.
struct Group {
    table: hostbuf_collective,
    owned: bool,
}

impl Drop for Group {
    fn drop(&mut self) {
        if let (true, Some(release)) = (self.owned, self.table.release) {
            // SAFETY: the context that split() gave, once.
            unsafe { release(self.table.context) };
        }
    }
}

impl Group {
    fn done(&self, operation: &'static str, code: c_int) -> Result<()> {
        if code == 0 {
            return Ok(());
        }
        let mut text = [0u8; 512];
        if let Some(describe) = self.table.describe {
            // SAFETY: room for so many bytes; the last one stays NUL.
            unsafe { describe(self.table.context, code, text.as_mut_ptr().cast(), text.len() - 1) };
        }
        let said = CStr::from_bytes_until_nul(&text).map(|text| text.to_string_lossy()).unwrap_or_default();
        let why = match said.trim() {
            "" => format!("the program's function answered {code}"),
            said => format!("{said} ({code})"),
        };
        Err(Error::Collective { operation, why })
    }
}

/// No job has more: what is larger was never set.
const MOST_RANKS: usize = 1 << 24;

/// The tables that are used have these; it was looked at when they came.
const THERE: &str = "a table that was checked";

impl Collective for Group {
    fn rank(&self) -> usize {
        self.table.rank
    }

    fn size(&self) -> usize {
        self.table.size
    }

    fn all_gather(&self, mine: &[u8], all: &mut [u8]) -> Result<()> {
        assert_eq!(all.len(), mine.len() * self.size());
        let gather = self.table.all_gather.expect(THERE);
        // SAFETY: so many bytes each.
        let code =
            unsafe { gather(self.table.context, mine.as_ptr().cast(), mine.len(), all.as_mut_ptr().cast()) };
        self.done("all_gather", code)
    }

    fn broadcast(&self, bytes: &mut [u8], root: usize) -> Result<()> {
        let broadcast = self.table.broadcast.expect(THERE);
        // SAFETY: so many bytes.
        let code = unsafe { broadcast(self.table.context, bytes.as_mut_ptr().cast(), bytes.len(), root) };
        self.done("broadcast", code)
    }

    fn split(&self, color: usize) -> Result<Box<dyn Collective>> {
        let mut part = hostbuf_collective { context: std::ptr::null_mut(), release: None, ..self.table };
        let split = self.table.split.expect(THERE);
        // SAFETY: the place is this function's own.
        self.done("split", unsafe { split(self.table.context, color, &raw mut part) })?;
        let part = Group { table: part, owned: true };
        match part.table.lacks() {
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
        // SAFETY: so many words.
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

/// The same without an `all_reduce` of its own.
struct Gathered<'a>(&'a Group);

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
    /// What is missing for it to be used.
    fn lacks(&self) -> Option<String> {
        let missing = [
            ("all_gather", self.all_gather.is_none()),
            ("broadcast", self.broadcast.is_none()),
            ("split", self.split.is_none()),
        ];
        if let Some((name, _)) = missing.iter().find(|(_, missing)| *missing) {
            return Some(format!("the collective has no function {name}"));
        }
        let strange = self.rank >= self.size || self.size > MOST_RANKS;
        strange.then(|| format!("the collective is rank {} of {}", self.rank, self.size))
    }
}

/// The group that a caller named; null: this process alone.
///
/// # Safety
/// Null, or a table whose functions do what it says for as long as the result is used.
pub unsafe fn group<'a>(table: *const hostbuf_collective) -> Outcome<Box<dyn Collective + 'a>> {
    if table.is_null() {
        return Ok(Box::new(Solo));
    }
    // SAFETY: by the contract of this.
    let table = *unsafe { given(table, "group") }?;
    match table.lacks() {
        None => Ok(Box::new(Group { table, owned: false })),
        Some(why) => Err(argument(why)),
    }
}

/// Tries a group: each function is called, and what it answers is compared with what it should.
/// Collective: all ranks go through all of it, whatever they find, and each reports what it found
/// first. For whoever writes a table of his own.
// Safety: `group` as everywhere.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hostbuf_try_collective(group: *const hostbuf_collective) -> hostbuf_status {
    call(|| {
        // SAFETY: by the contract of this.
        let group = unsafe { self::group(group) }?;
        let (rank, size) = (group.rank(), group.size());
        let mut tried = vec![functions(&*group)];
        tried.push(group.split(rank % 2).map_err(Trouble::from).and_then(|part| {
            // The others of the part go through its functions too.
            let worked = functions(&*part);
            match (part.rank(), part.size()) == (rank / 2, (size + 1 - rank % 2) / 2) {
                true => worked,
                false => Err(wrong("split")),
            }
        }));
        tried.into_iter().collect()
    })
}

fn wrong(function: &str) -> Trouble {
    argument(format!("the collective's {function} gives something else than it should"))
}

/// All functions of a group but the division; what was found first.
fn functions(group: &dyn Collective) -> Outcome<()> {
    let (rank, size) = (group.rank(), group.size());
    let mut all = vec![0u8; 8 * size];
    let gathered = group.all_gather(&(rank as u64).to_ne_bytes(), &mut all).map_err(Trouble::from);
    let as_wanted =
        |given: &[u8]| (0..size).all(|other| given[8 * other..][..8] == (other as u64).to_ne_bytes());
    let gathered = gathered.and_then(|()| as_wanted(&all).then_some(()).ok_or_else(|| wrong("all_gather")));
    let mut word = (rank as u64 + 7).to_ne_bytes();
    let told = group.broadcast(&mut word, size - 1).map_err(Trouble::from);
    let is_last = u64::from_ne_bytes(word) == size as u64 + 6;
    let mut found = gathered.and(told.and_then(|()| is_last.then_some(()).ok_or_else(|| wrong("broadcast"))));
    let top = 1u64 << 63;
    for (how, mine, wanted) in [
        (Reduce::Min, top + rank as u64, top),
        (Reduce::Max, if rank == 0 { u64::MAX } else { 5 }, u64::MAX),
        (Reduce::Sum, 3, 3 * size as u64),
        (Reduce::And, if rank == 0 { 6 } else { 14 }, 6),
    ] {
        let mut words = [mine, 0];
        let reduced = group.all_reduce(&mut words, how).map_err(Trouble::from);
        let is_it = words == [wanted, 0];
        found = found.and(reduced.and_then(|()| is_it.then_some(()).ok_or_else(|| wrong("all_reduce"))));
    }
    found
}

/// Whether this process leads its host in `group`: it is the first of the ranks there. Collective.
// Safety: `leads` is null or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hostbuf_leads(group: *const hostbuf_collective, leads: *mut bool) -> hostbuf_status {
    call(|| {
        // SAFETY: by the contract of this.
        let (leads, group) = unsafe { (place(leads, "leads"), self::group(group)?) };
        *together(&*group, leads)? = library::job::Hosts::new(&*group)?.leads();
        Ok(())
    })
}
