//! The work of one worker, which claims windows in turn and allocates their pages. This code
//! neither allocates nor locks, since it also runs in a child of a process with threads.

#![allow(unsafe_code, reason = "pages are touched and advised by address")]

use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use crate::pages::{EXTENT, Pages};
use crate::populate::view::FileView;
use hostbuf_os::array::Zero;
use hostbuf_os::memory;

/// The range of a file to populate.
#[derive(Clone, Copy)]
pub(super) struct Task {
    pub(super) fd: i32,
    /// The offset of the range in the file.
    pub(super) start: u64,
    pub(super) length: u64,
    pub(super) pages: Pages,
    /// True if a huge page that is not available is an error.
    pub(super) strict: bool,
}

/// The reason why a worker has not allocated its pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WorkerFailure {
    /// A system call failed with this errno.
    Errno(i32),
    /// A signal has ended the worker process.
    Ended {
        pid: i32,
        signal: i32,
        /// True if the OOM killer has sent it.
        for_memory: bool,
    },
}

impl From<i32> for WorkerFailure {
    fn from(errno: i32) -> WorkerFailure {
        WorkerFailure::Errno(errno)
    }
}

/// The way in which a worker allocates ordinary pages. One worker that writes and several that
/// fault are faster than workers of one kind: writes wait for each other, and the faults of several
/// threads contend for shared locks.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum PopulateMethod {
    /// By `MADV_POPULATE_WRITE`.
    Fault,
    /// By writing zeroes to the file.
    Write,
}

/// The state that the workers share.
#[derive(Default)]
#[repr(C)]
pub(super) struct Tally {
    /// The beginning of the next window, from the beginning of the range.
    next: AtomicU64,
    /// The first error, 0 for none.
    error: AtomicI32,
    pub(super) done: AtomicU64,
    pub(super) huge: AtomicU64,
}

// SAFETY: zero is a valid value of each atomic.
unsafe impl Zero for Tally {}

impl Task {
    /// Returns the offset of the end of the range.
    pub(super) fn end(&self) -> u64 {
        self.start + self.length
    }

    /// Returns the number of bytes that a worker claims at a time.
    pub(super) fn window(&self) -> u64 {
        match self.pages {
            Pages::Small => (self.length / 32).clamp(8 << 20, 32 << 20).next_multiple_of(EXTENT),
            pages => pages.size().max(64 << 20),
        }
    }

    /// Returns the number of workers to use on `cores` cores. Ordinary pages enter the file one by
    /// one under one lock, and each fault of a thread also takes the lock of the address space.
    /// More than four workers are therefore slower (docs/figures.md).
    pub(super) fn workers(&self, cores: usize) -> usize {
        let most = if self.pages == Pages::Small { 4 } else { 16 };
        cores.clamp(1, most).min(self.length.div_ceil(self.window()) as usize)
    }

    /// Claims windows of the range below `end` and allocates their pages, until none is left or a
    /// worker has failed. `view` returns the mapping of a window, and `report` is called after each
    /// window.
    pub(super) fn work<V: AsRef<FileView>>(
        &self,
        tally: &Tally,
        end: u64,
        method: PopulateMethod,
        view: impl Fn(u64, u64) -> Result<(V, u64), i32>,
        report: &mut dyn FnMut(),
    ) -> Result<(), i32> {
        while let Some((at, length)) = tally.claim(self.window(), end - self.start) {
            let at = self.start + at;
            let taken = match method {
                PopulateMethod::Write if self.pages == Pages::Small => self.write(at, length).map(|()| 0),
                _ => {
                    view(at, length).and_then(|(view, from)| self.take(view.as_ref(), from, at, length, None))
                }
            };
            let huge = taken.map_err(|errno| tally.fail(errno))?;
            tally.add(length, huge);
            report();
        }
        Ok(())
    }

    /// Allocates the pages of a part at `from` in `view`, which is at `at` in the file. Returns the
    /// number of bytes on huge pages. `place` moves small pages to their node before the next are
    /// allocated.
    pub(super) fn take(
        &self,
        view: &FileView,
        from: u64,
        at: u64,
        length: u64,
        place: Option<&PlaceSmall<'_>>,
    ) -> Result<u64, i32> {
        match self.pages {
            Pages::Small => self.fault(view, from, at, length).map(|()| 0),
            Pages::Transparent => self.collapse(view, from, length, place),
            _ => self.fault(view, from, at, length).map(|()| length),
        }
    }

    fn fault(&self, view: &FileView, from: u64, at: u64, length: u64) -> Result<(), i32> {
        loop {
            match view.advise(from, length, libc::MADV_POPULATE_WRITE) {
                Err(libc::EINTR | libc::EAGAIN) => {}
                // Linux before 5.14 does not know this advice. fallocate is slower, but has the
                // same effect.
                Err(libc::EINVAL) => {
                    // SAFETY: the call accesses no memory.
                    if unsafe { libc::fallocate(self.fd, 0, at as libc::off_t, length as libc::off_t) } == 0 {
                        return Ok(());
                    }
                    return Err(nix::errno::Errno::last_raw());
                }
                other => return other,
            }
        }
    }

    fn write(&self, at: u64, length: u64) -> Result<(), i32> {
        static ZEROES: [u8; 64 << 10] = [0; 64 << 10];
        let mut done = 0;
        while done < length {
            let bytes = (length - done).min(ZEROES.len() as u64) as usize;
            // SAFETY: reads `bytes` bytes of ZEROES, which is at least that long.
            match unsafe { libc::pwrite(self.fd, ZEROES.as_ptr().cast(), bytes, (at + done) as libc::off_t) }
            {
                ..0 => match nix::errno::Errno::last_raw() {
                    libc::EINTR => {}
                    errno => return Err(errno),
                },
                0 => return Err(libc::ENOSPC),
                written => done += written as u64,
            }
        }
        Ok(())
    }

    /// Allocates a part on transparent huge pages: one small page in each extent, from which the
    /// kernel then makes a huge one on the same node. This works on memory files for any value of
    /// `shmem_enabled`. Returns the number of bytes on huge pages.
    fn collapse(
        &self,
        view: &FileView,
        from: u64,
        length: u64,
        place: Option<&PlaceSmall<'_>>,
    ) -> Result<u64, i32> {
        let whole = length / EXTENT * EXTENT;
        if place.is_some() {
            // With some values of `shmem_enabled` the first touch allocates a huge page, maybe on
            // another node.
            let _ = view.advise(from, length, libc::MADV_NOHUGEPAGE);
        }
        for at in extents(from, whole) {
            view.advise(at, memory::page_size(), libc::MADV_POPULATE_WRITE)?;
        }
        if let Some(place) = place {
            place(from, whole, EXTENT)?;
        }
        if whole < length {
            view.advise(from + whole, length - whole, libc::MADV_POPULATE_WRITE)?;
        }
        if place.is_some() {
            let _ = view.advise(from, length, libc::MADV_HUGEPAGE);
        }
        // One call covers all extents, since each call drains the page lists of every core and
        // waits for this.
        if whole > 0 && view.advise(from, whole, MADV_COLLAPSE).is_ok() {
            return Ok(whole);
        }
        // Some extents cannot be collapsed. Each is tried separately to find these.
        self.collapse_each(view, from, whole, place)
    }

    /// Makes a huge page of each extent of a part, or allocates the small pages of an extent that
    /// cannot be one. Returns the number of bytes on huge pages.
    pub(super) fn collapse_each(
        &self,
        view: &FileView,
        from: u64,
        length: u64,
        place: Option<&PlaceSmall<'_>>,
    ) -> Result<u64, i32> {
        let mut huge = 0;
        for at in extents(from, length) {
            let mut tries = 0;
            let collapsed = loop {
                tries += 1;
                match view.advise(at, EXTENT, MADV_COLLAPSE) {
                    Ok(()) => break true,
                    // Transient: some pages are isolated at the moment.
                    Err(libc::EAGAIN | libc::EBUSY) if tries < 10 => {}
                    Err(errno) if self.strict => return Err(errno),
                    Err(_) => break false,
                }
            };
            if collapsed {
                huge += EXTENT;
            } else {
                view.advise(at, EXTENT, libc::MADV_POPULATE_WRITE)?;
                if let Some(place) = place {
                    place(at, EXTENT, memory::page_size())?;
                }
            }
        }
        Ok(huge)
    }
}

/// Returns the beginnings of the whole extents of a part.
fn extents(from: u64, length: u64) -> impl Iterator<Item = u64> {
    (from..from + length / EXTENT * EXTENT).step_by(EXTENT as usize)
}

/// The function that moves the small pages of a part to their node: the first page of each step.
/// Its arguments are the beginning of the part in the view, its length, and the step.
pub(super) type PlaceSmall<'a> = dyn Fn(u64, u64, u64) -> Result<(), i32> + 'a;

const MADV_COLLAPSE: i32 = 25;

impl Tally {
    /// Adds allocated bytes, of which `huge` are on huge pages.
    pub(super) fn add(&self, length: u64, huge: u64) {
        self.done.fetch_add(length, Ordering::Relaxed);
        self.huge.fetch_add(huge, Ordering::Relaxed);
    }

    pub(super) fn claim(&self, window: u64, end: u64) -> Option<(u64, u64)> {
        let claim =
            |at: u64| (at < end && self.error.load(Ordering::Relaxed) == 0).then_some((at + window).min(end));
        let at = self.next.fetch_update(Ordering::Relaxed, Ordering::Relaxed, claim).ok()?;
        Some((at, window.min(end - at)))
    }

    pub(super) fn fail(&self, errno: i32) -> i32 {
        let _ = self.error.compare_exchange(0, errno, Ordering::Relaxed, Ordering::Relaxed);
        errno
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_window_is_claimed_once_and_none_after_an_error() {
        for length in [4096, 2 << 20, (1 << 30) + 4096, 10 << 30] {
            let tally = Tally::default();
            let mut at = 0;
            while let Some((from, bytes)) = tally.claim(8 << 20, length) {
                assert_eq!(from, at);
                at += bytes;
            }
            assert_eq!(at, length);
        }
        let tally = Tally::default();
        assert!(tally.claim(1, 2).is_some());
        tally.fail(libc::ENOMEM);
        assert!(tally.claim(1, 2).is_none());
    }
}
