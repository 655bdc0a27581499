//! A participant's side of the agreement: it holds the candidates for which it votes.
//!
//! The module is compiled into the library and into the preloaded object, so it needs only `core`
//! and never allocates.

#![allow(unsafe_code, reason = "reserves, maps and unmaps address ranges")]

use crate::candidates::{self, Ballot};
use crate::limits::MAX_CANDIDATES;
use crate::message::{AddressWindow, Message, RefusedCandidate};
use crate::range::{AgreedRange, Extent, FLAG_DUMP, FLAG_SMALL_PAGES, Part};
use hostbuf_raw::maps;
use hostbuf_raw::syscall::{self as raw, Errno};

/// The address ranges that this process holds for the vote in progress: reserved, without access.
pub struct Holds {
    length: usize,
    addresses: [usize; MAX_CANDIDATES],
    mask: u64,
    address_window: AddressWindow,
}

/// The number of free ranges that cannot be held after which a search gives up.
const HOLE_TRIES: usize = 1000;

/// The reason why a candidate could not be held.
pub struct Refusal {
    /// The candidate.
    pub address: usize,
    /// The error of `mmap`.
    pub errno: Errno,
    /// The first mapping in the range, or zeros if there is none (the cause is a limit then).
    pub mapping: (usize, usize),
    path: [u8; maps::PATH_MAX],
    path_length: usize,
}

impl Refusal {
    fn find(address: usize, length: usize, errno: Errno) -> Refusal {
        let mut refusal =
            Refusal { address, errno, mapping: (0, 0), path: [0; maps::PATH_MAX], path_length: 0 };
        // Without /proc the refusal remains, but its cause is unknown.
        let _ = maps::each(|mapped| {
            if mapped.end <= address {
                return true;
            }
            if mapped.start < address + length {
                refusal.mapping = (mapped.start, mapped.end);
                refusal.path[..mapped.path.len()].copy_from_slice(mapped.path);
                refusal.path_length = mapped.path.len();
            }
            false
        });
        refusal
    }

    /// Returns the refusal as a message contains it.
    #[must_use]
    pub fn record(&self) -> RefusedCandidate<'_> {
        RefusedCandidate {
            address: self.address as u64,
            errno: self.errno.0 as u64,
            mapping: (self.mapping.0 as u64, self.mapping.1 as u64),
            path: self.path(),
        }
    }

    /// Returns the path of the mapping in the range. It is empty for anonymous memory.
    #[must_use]
    pub fn path(&self) -> &[u8] {
        &self.path[..self.path_length]
    }
}

impl Holds {
    /// Makes an empty set of holds.
    #[must_use]
    pub fn new(address_window: AddressWindow) -> Holds {
        Holds { length: 0, addresses: [0; MAX_CANDIDATES], mask: 0, address_window }
    }

    /// Releases all holds, then holds each candidate of `ballot` that is free, with `length` bytes.
    /// Returns the held candidates as a bit mask, and the first refusal because of a limit, or else
    /// the first one.
    pub fn vote(&mut self, ballot: &Ballot, length: usize) -> (u64, Option<Refusal>) {
        self.release();
        self.length = length;
        let mut first = None;
        for (i, &address) in ballot.as_slice().iter().enumerate() {
            let result =
                if self.may(address, length) { raw::hold(address, length) } else { Err(Errno::EXIST) };
            match result {
                Ok(()) => {
                    self.addresses[i] = address;
                    self.mask |= 1 << i;
                }
                // A limit is the better reason: it refuses every other address too.
                Err(errno)
                    if first
                        .as_ref()
                        .is_none_or(|one: &Refusal| errno == Errno::NOMEM && one.errno != errno) =>
                {
                    first = Some(Refusal::find(address, length, errno));
                }
                Err(_) => {}
            }
        }
        (self.mask, first)
    }

    fn may(&self, address: usize, length: usize) -> bool {
        let window = candidates::SANITIZED;
        self.address_window == AddressWindow::Anywhere
            || (window.start <= address && length <= window.end.saturating_sub(address))
    }

    /// Returns the lowest aligned hole of this process at or above `from` in which it can hold
    /// `length` bytes. It releases its holds first, so that they do not occupy the hole.
    pub fn hole(&mut self, from: usize, length: usize, align: usize) -> Option<usize> {
        self.release();
        let (from, top) = match self.address_window {
            AddressWindow::Anywhere => (from, candidates::TOP),
            AddressWindow::Sanitized => (from.max(candidates::SANITIZED.start), candidates::SANITIZED.end),
        };
        let mut from = from;
        for _ in 0..HOLE_TRIES {
            let hole = maps::hole(from, length, align, top).ok().flatten()?;
            match raw::hold(hole, length) {
                Ok(()) => {
                    // SAFETY: hold() has reserved the range, and nothing was mapped over it.
                    unsafe { raw::unmap(hole, length) };
                    return Some(hole);
                }
                // A limit of this process (`ulimit -v`, the number of mappings): no other address
                // can succeed.
                Err(Errno::NOMEM) => return None,
                // The hole is below `vm.mmap_min_addr`, or another thread has mapped it.
                Err(_) => from = hole.checked_add(align)?,
            }
        }
        None
    }

    /// Keeps the hold at `address` and releases the others. Returns false if there is no such hold.
    pub fn keep(&mut self, address: usize) -> bool {
        let mut kept = false;
        for i in 0..MAX_CANDIDATES {
            if self.mask & 1 << i != 0 && self.addresses[i] == address {
                kept = true;
            } else {
                self.drop_one(i);
            }
        }
        kept
    }

    /// Keeps the hold at `address`, if there is one, until the process ends, and releases the
    /// others.
    pub fn reserve(mut self, address: usize) {
        if self.keep(address) {
            self.into_segment();
        }
    }

    /// Forgets the only remaining hold without unmapping it: it has become a segment.
    pub fn into_segment(mut self) {
        self.mask = 0;
    }

    fn drop_one(&mut self, i: usize) {
        if self.mask & 1 << i != 0 {
            self.mask &= !(1 << i);
            // SAFETY: bit i is set if vote() has reserved exactly this range with NOREPLACE.
            // Nothing was mapped over it: this happens in map() below, which consumes the holds.
            unsafe { raw::unmap(self.addresses[i], self.length) };
        }
    }

    fn release(&mut self) {
        for i in 0..MAX_CANDIDATES {
            self.drop_one(i);
        }
    }

    /// Holds `range` without a vote: for a program started later, or a spawned process.
    ///
    /// # Errors
    /// Returns the refusal if the range is not free in this process.
    #[allow(clippy::result_large_err, reason = "it also runs where there is no allocator")]
    pub fn take(&mut self, range: &AgreedRange<'_>) -> Result<(), Refusal> {
        let (_, refusal) = self.vote(&Ballot::new(&[range.address as usize]), range.length as usize);
        refusal.map_or(Ok(()), Err)
    }

    /// Maps the identity (the first descriptor), the control page (the second) and the buffers (the
    /// others, in order) over the hold at `range.address`, which must be the only remaining one.
    /// The gaps stay reserved without access, as guards.
    ///
    /// The identity is mapped privately, without write access: before Linux 6.7 the kernel refuses
    /// shared mappings of a file that is sealed against writes.
    ///
    /// # Errors
    /// Returns the error of `mmap`, or `EBADF` for another number of descriptors than the range has
    /// parts. Everything is unmapped then.
    pub fn map(mut self, range: &AgreedRange<'_>, descriptors: &[i32]) -> Result<(), Errno> {
        if !self.keep(range.address as usize) || self.length != range.length as usize {
            return Err(Errno::EXIST);
        }
        let [identity, control, buffers @ ..] = descriptors else { return Err(Errno::BADF) };
        if descriptors.len() != range.descriptors() || !range.is_valid() {
            return Err(Errno::BADF);
        }
        let rw = raw::PROT_READ | raw::PROT_WRITE;
        let at = |part: Part| (range.address + part.offset) as usize;
        // SAFETY: the whole range is a hold of this process, and every part is inside it
        // (is_valid).
        let over = |part: Part, protection, fd, flags| unsafe {
            raw::map_over(at(part), part.length as usize, protection, fd, 0, flags)
        };
        let mut result = over(range.identity, raw::PROT_READ, *identity, raw::MAP_PRIVATE)
            .and_then(|()| over(range.control, rw, *control, raw::MAP_SHARED));
        for (extent, &fd) in range.buffers.iter().zip(buffers) {
            let flags = raw::MAP_SHARED | (extent.flags & !(FLAG_DUMP | FLAG_SMALL_PAGES)) as usize;
            result = result.and_then(|()| match over(extent.part, rw, fd, flags) {
                // The buffer is frozen: a process that maps it now may only read.
                Err(Errno::PERM) => over(extent.part, raw::PROT_READ, fd, flags),
                other => other,
            });
            if result.is_ok() {
                advise(at(extent.part), &extent);
            }
        }
        match result {
            Ok(()) => {
                self.into_segment();
                Ok(())
            }
            Err(errno) => {
                self.release();
                Err(errno)
            }
        }
    }
}

/// Gives the kernel the advice for a buffer on its mapping.
fn advise(address: usize, buffer: &Extent) {
    let length = buffer.part.length as usize;
    if buffer.flags & FLAG_DUMP == 0 {
        // SAFETY: it changes no contents. If the kernel rejects it, core files are only larger.
        let _ = unsafe { raw::advise(address, length, raw::MADV_DONTDUMP) };
    }
    if buffer.flags & FLAG_SMALL_PAGES != 0 {
        // With `shmem_enabled` set to `always`, khugepaged would make huge pages of small ones,
        // each on the node that has most of them.
        // SAFETY: it changes no contents. A kernel that rejects it has no huge pages.
        let _ = unsafe { raw::advise(address, length, raw::MADV_NOHUGEPAGE) };
    }
}

impl Drop for Holds {
    fn drop(&mut self) {
        self.release();
    }
}

/// Passes the reply to a question of the agent to `send`. Returns what `send` returns, or `None` if
/// `message` is no question.
pub fn answer<T>(
    holds: &mut Holds,
    message: &Message<'_>,
    send: impl FnOnce(&Message<'_>) -> T,
) -> Option<T> {
    match message {
        Message::Ballot { length, candidates } => {
            let (mask, refusal) = holds.vote(candidates, *length as usize);
            let refusal = refusal.as_ref().map(Refusal::record);
            Some(send(&Message::Votes { mask, refusal }))
        }
        Message::Search { length, from, align } => {
            let align = (*align as usize).checked_next_power_of_two()?;
            let hole = holds.hole(*from as usize, *length as usize, align);
            Some(send(&Message::Hole { address: hole.map(|hole| hole as u64) }))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LENGTH: usize = 1 << 21;

    /// Returns a hole found at run time, so that tests in one process do not conflict.
    fn free() -> usize {
        maps::hole(0x2800_0000_0000 + ((raw::pid() as usize & 0xffff) << 24), LENGTH, LENGTH, candidates::TOP)
            .unwrap()
            .unwrap()
    }

    #[test]
    fn a_vote_holds_the_candidates_and_a_refusal_names_the_mapping() {
        let (a, b) = (free(), free() + 64 * LENGTH);
        let mut holds = Holds::new(AddressWindow::Anywhere);
        let ballot = Ballot::new(&[a, b]);
        let (mask, refusal) = holds.vote(&ballot, LENGTH);
        assert_eq!(mask, 0b11);
        assert!(refusal.is_none());
        // A second participant in the same address space finds both candidates occupied.
        let mut other = Holds::new(AddressWindow::Anywhere);
        let (mask, refusal) = other.vote(&ballot, LENGTH);
        let refusal = refusal.unwrap();
        assert_eq!((mask, refusal.address, refusal.errno, refusal.mapping.0), (0, a, Errno::EXIST, a));
        // Keeping one hold releases the other.
        assert!(holds.keep(b));
        assert_eq!(other.vote(&ballot, LENGTH).0, 0b01);
        drop(holds);
        assert_eq!(other.vote(&ballot, LENGTH).0, 0b11);
    }

    #[test]
    fn a_sanitized_participant_votes_only_for_its_window() {
        let mut holds = Holds::new(AddressWindow::Sanitized);
        let (mask, _) = holds.vote(&Ballot::new(&[free()]), LENGTH);
        assert_eq!(mask, 0);
        let hole = holds.hole(0, LENGTH, LENGTH).unwrap();
        assert!(candidates::SANITIZED.contains(&hole));
    }

    #[test]
    fn the_hole_that_is_found_can_be_held() {
        let mut holds = Holds::new(AddressWindow::Anywhere);
        let hole = holds.hole(candidates::SEARCH_FROM[1], LENGTH, LENGTH).unwrap();
        assert_eq!(holds.vote(&Ballot::new(&[hole]), LENGTH).0, 1);
    }
}
