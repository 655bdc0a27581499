//! The exclusive right to fill a buffer.

#![allow(unsafe_code, reason = "zeroes a part of the buffer by address")]

use std::os::fd::{AsFd, AsRawFd};
use std::ptr::NonNull;

use tracing::warn;

use crate::error::{Error, Result};
use crate::fill::arena::Placed;
use crate::fill::portable::Portable;
use crate::fill::type_number::type_number;
use crate::segment::fill_state::FillState;
use crate::segment::fillers::Claim;
use crate::segment::handle::HostBuffer;
use hostbuf_memory::memfd;
use hostbuf_os::copies::claims::{self, ClaimRefusal, ProcessClaim};

/// The exclusive right to fill a buffer. It holds the kernel's record lock, which ends with the
/// process. Dropping it before it is [finished](FillTurn::finish) or
/// [completed](FillTurn::complete) leaves the buffer empty.
pub(crate) struct FillTurn<'b> {
    buffer: &'b HostBuffer,
    pub(crate) generation: u64,
    /// The offset at which the arena begins.
    start: u64,
    finished: bool,
    locked: bool,
    /// The claim that excludes the other copies of this library in the process, since a record lock
    /// belongs to the process. It is dropped after the lock is released.
    _claim: ProcessClaim,
    /// The process that has the right. A child that is forked meanwhile has a copy of this turn.
    process: u32,
}

/// The part of the buffer that a turn may fill.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum FillFrom {
    /// The memory without references to it. It excludes the blocks of a failed fill while its
    /// process lives, since the process may have kept references to them.
    Fresh,
    /// The whole buffer, for bytes from another host.
    All,
}

impl<'b> FillTurn<'b> {
    /// Takes the right, zeroes the arena and starts a new generation. Returns `None` if another
    /// process, thread or copy of this library has the right, or has filled the buffer meanwhile.
    ///
    /// # Errors
    /// [`Error::Fill`] if this thread has it already; [`Error::Os`]; [`Error::Corrupt`].
    pub(crate) fn begin(buffer: &'b HostBuffer, from: FillFrom) -> Result<Option<FillTurn<'b>>> {
        let (control, index) = (buffer.control(), buffer.index);
        match buffer.segment.fillers.claim(index) {
            Claim::Granted => {}
            Claim::Own => return Err(nested()),
            Claim::Other => return Ok(None),
        }
        let claim = match claims::claim(claims::filler(control.address(), index)) {
            Ok(claim) => claim,
            Err(refusal) => {
                buffer.segment.fillers.release(index);
                return match refusal {
                    ClaimRefusal::Held(holder) if holder.is_own_thread => Err(nested()),
                    ClaimRefusal::Held(_) => Ok(None),
                    other => Err(Error::Fill { why: format!("claiming the filler's lock: {other}") }),
                };
            }
        };
        // From here on, dropping the turn releases the right.
        let process = std::process::id();
        let mut turn = FillTurn {
            buffer,
            generation: 0,
            start: 0,
            finished: true,
            locked: false,
            _claim: claim,
            process,
        };
        let lock = buffer.segment.control_fd.as_fd();
        turn.locked = memfd::try_lock(lock, index as u64).map_err(Error::os("taking the filler's lock"))?;
        if !turn.locked {
            return Ok(None);
        }
        let state = control.fill(index)?;
        if !matches!(state, FillState::Empty | FillState::Filling) {
            return Ok(None);
        }
        let generation = control.generation(index)?;
        turn.finished = false;
        turn.generation = generation + 1;
        if from == FillFrom::Fresh {
            turn.start = buffer.arena_start();
        }
        if generation > 0 {
            warn!(buffer = %buffer.name(), generation = turn.generation, "an earlier filler did not finish; filling the buffer again");
            // The memory of a filler that died is zeroed. A filler that failed in a live process
            // may still have references to its blocks.
            if from == FillFrom::Fresh {
                turn.start = turn.start.max(control.retained(index)?).min(buffer.len() as u64);
            }
            turn.zero()?;
        }
        control.set_high_water(index, turn.start);
        control.set_root(index, 0, 0);
        control.set_generation(index, turn.generation);
        control.set_fill(index, FillState::Filling);
        Ok(Some(turn))
    }

    /// Zeroes the arena, where an earlier filler may have written.
    fn zero(&self) -> Result<()> {
        let length = self.buffer.len() as u64;
        let page = hostbuf_os::memory::page_size().max(self.buffer.pages().size());
        let whole = self.start.next_multiple_of(page).min(length);
        // Pages that were taken lazily are freed, the others stay allocated.
        let until = if !self.buffer.identity().lazy { length } else { whole };
        if until < length {
            let punched = memfd::punch(self.buffer.fd(), until, length - until);
            punched.map_err(Error::os("zeroing the buffer"))?;
        }
        // SAFETY: inside the mapping, behind the beginning of the arena. There are no references to
        // it, and no other process may use it while this one has the turn.
        unsafe {
            let from = self.buffer.as_ptr().add(self.start as usize);
            from.write_bytes(0, (until - self.start) as usize);
        }
        Ok(())
    }

    fn is_own(&self) -> bool {
        self.process == std::process::id()
    }

    /// Marks the buffer as filled with `placed` as its root.
    ///
    /// # Errors
    /// [`Error::Fill`] in a forked child, or if `placed` is in another buffer or of an earlier
    /// attempt.
    pub(crate) fn finish<T: Portable + Sync>(self, placed: Placed<'b, T>) -> Result<&'b T> {
        if !self.is_own() {
            return Err(forked());
        }
        let at: NonNull<T> = placed.as_ptr();
        let offset = (at.as_ptr() as u64).wrapping_sub(self.buffer.as_ptr().as_ptr() as u64);
        if !self.buffer.contains(at.as_ptr().cast(), size_of::<T>()) || offset < self.start {
            return Err(Error::Fill {
                why: "the root object is in another buffer, or in the memory of an earlier attempt".into(),
            });
        }
        self.complete(offset + 1, type_number::<T>());
        Ok(placed.get())
    }

    /// Marks the buffer as filled. `root` is as in
    /// [`Control::root`](crate::segment::control::Control::root).
    pub(crate) fn complete(mut self, root: u64, root_type: u64) {
        let (control, index) = (self.buffer.control(), self.buffer.index);
        control.set_root(index, root, root_type);
        self.finished = true;
        control.set_fill(index, FillState::Filled);
    }
}

impl Drop for FillTurn<'_> {
    fn drop(&mut self) {
        if !self.is_own() {
            return;
        }
        if !self.finished {
            // The next turn sees a generation above 0, and fills again.
            let (control, index) = (self.buffer.control(), self.buffer.index);
            if let Ok(mark) = self.buffer.high_water() {
                control.set_retained(index, mark);
            }
            control.set_fill(index, FillState::Empty);
        }
        let fd = self.buffer.segment.control_fd.as_fd();
        if self.locked
            && let Err(error) = memfd::unlock(fd, self.buffer.index as u64)
        {
            warn!(%error, fd = fd.as_raw_fd(), "the filler's lock remains until this process ends");
        }
        self.buffer.segment.fillers.release(self.buffer.index);
    }
}

/// Returns the error of a thread that begins a turn inside its own turn.
fn nested() -> Error {
    let why = "this thread is already filling the buffer: initialize was called inside initialize";
    Error::Fill { why: why.into() }
}

/// Returns the error of a forked child that tries to end its parent's turn.
pub(crate) fn forked() -> Error {
    let why =
        "a child that was forked while the buffer is filled cannot complete the fill: only its parent can";
    Error::Fill { why: why.into() }
}
