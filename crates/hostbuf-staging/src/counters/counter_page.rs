//! The page with the counters of a ring, which other processes can read.
//!
//! The page is a memory file of the name [`FILE_NAME`], which exists as long as the ring. Others
//! find it in `/proc/PID/fd` and copy it; the ring takes no notice of them. It consists of 64-bit
//! words in the order of the machine: [`MAGIC`], a [`PageWord`] each, and after them the
//! description of the device in UTF-8, filled up with zeros.

#![allow(unsafe_code, reason = "maps a page, and accesses it as atomic words")]

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hostbuf_os::{ForkLock, PrivateFd};
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};
use nix::time::{ClockId, clock_gettime};

/// The name of the memory file.
pub(super) const FILE_NAME: &str = "hostbuf:ring";
/// The first word of a page: its format and version.
pub(super) const MAGIC: u64 = u64::from_le_bytes(*b"hbring\x00\x01");
/// The number of bytes of a page.
pub(super) const PAGE_BYTES: usize = 4096;
/// The offset in bytes of the description of the device, and its longest length.
pub(super) const DEVICE: (usize, usize) = (1024, 256);

/// The words of a page. Times are in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PageWord {
    /// The options of the ring.
    Slots = 1,
    SlotBytes,
    PieceBytes,
    Workers,
    /// The counts: see [`RingCounters`](super::RingCounters).
    Transfers,
    ToDevice,
    FromDevice,
    Copies,
    Reading,
    Writing,
    WaitingForDevice,
    WaitingForSlot,
    /// The clock of transfers: see [`CounterPage::begin`].
    Active,
    ActiveSince,
    ActiveUsers,
    /// The clock of the device.
    Copying,
    CopyingSince,
    CopyingUsers,
}

/// A time in which something happens at least once: the words of its sum, of the time at which the
/// present period began, and of the number of users.
pub(crate) type BusyClock = [PageWord; 3];
/// The time in which there is a transfer.
pub(crate) const ACTIVE: BusyClock = [PageWord::Active, PageWord::ActiveSince, PageWord::ActiveUsers];
/// The time in which the device has a copy.
pub(crate) const COPYING: BusyClock = [PageWord::Copying, PageWord::CopyingSince, PageWord::CopyingUsers];

/// The numbers that describe a ring: see [`RingOptions`](crate::RingOptions).
#[derive(Clone, Copy, Debug)]
pub(crate) struct RingShape {
    pub(crate) slots: usize,
    pub(crate) slot_bytes: usize,
    pub(crate) piece_bytes: usize,
    pub(crate) workers: usize,
}

/// The page of a ring. Every operation on it is one or two atomic operations, and no system call.
pub(crate) struct CounterPage {
    memory: NonNull<u8>,
    /// `None` if no file could be made: nobody else sees the counters then.
    file: Option<PrivateFd>,
}

// SAFETY: the page is accessed by atomic operations only, once it is shared.
unsafe impl Send for CounterPage {}
// SAFETY: as above.
unsafe impl Sync for CounterPage {}

impl CounterPage {
    /// Makes the page of a ring. If this process has no descriptor left, only this process sees it.
    ///
    /// # Errors
    /// As `mmap(2)`.
    pub(crate) fn new(device: &str, shape: RingShape) -> std::io::Result<CounterPage> {
        let mut unforked = ForkLock::take();
        let file = memfd_create(FILE_NAME, MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING)
            .and_then(|file| nix::unistd::ftruncate(&file, PAGE_BYTES as i64).map(|()| file));
        let length = const { std::num::NonZeroUsize::new(PAGE_BYTES).expect("not zero") };
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        let file = match file {
            Ok(file) => Some(unforked.keep(file)),
            Err(error) => {
                tracing::debug!(%error, "no other process can read the counters of a ring");
                None
            }
        };
        drop(unforked);
        let memory = match &file {
            // SAFETY: a new mapping of a file that never shrinks.
            Some(file) => unsafe { mmap(None, length, access, MapFlags::MAP_SHARED, file, 0) },
            // SAFETY: a new mapping.
            None => unsafe { nix::sys::mman::mmap_anonymous(None, length, access, MapFlags::MAP_PRIVATE) },
        }?;
        let page = CounterPage { memory: memory.cast(), file };
        let (at, room) = DEVICE;
        let bytes = &device.as_bytes()[..device.len().min(room)];
        // SAFETY: within the page, which nobody else writes to.
        unsafe { page.memory.add(at).copy_from_nonoverlapping(NonNull::from(bytes).cast(), bytes.len()) };
        for (word, value) in [
            (PageWord::Slots, shape.slots),
            (PageWord::SlotBytes, shape.slot_bytes),
            (PageWord::PieceBytes, shape.piece_bytes),
            (PageWord::Workers, shape.workers),
        ] {
            page.word(word as usize).store(value as u64, Ordering::Relaxed);
        }
        if let Some(file) = &page.file {
            // This mapping stays writable; nobody else can get one that is.
            let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_FUTURE_WRITE;
            if let Err(error) = fcntl(file, FcntlArg::F_ADD_SEALS(seals)) {
                tracing::debug!(%error, "processes of this user can change the counters of a ring");
            }
        }
        // A reader takes the page for complete from here on.
        page.word(0).store(MAGIC, Ordering::Release);
        Ok(page)
    }

    fn word(&self, number: usize) -> &AtomicU64 {
        debug_assert!(number * 8 < DEVICE.0, "words lie before the description");
        // SAFETY: within the page, which is aligned, and lives as long as `self`.
        unsafe { self.memory.cast::<AtomicU64>().add(number).as_ref() }
    }

    /// Adds to a count.
    pub(crate) fn add(&self, word: PageWord, number: u64) {
        self.word(word as usize).fetch_add(number, Ordering::Relaxed);
    }

    /// Runs `operation` and adds its time to a word.
    pub(crate) fn time<T>(&self, word: PageWord, operation: impl FnOnce() -> T) -> T {
        let begun = now();
        let result = operation();
        self.add(word, now().saturating_sub(begun));
        result
    }

    /// Adds a user of a clock, which runs as long as it has one.
    pub(crate) fn begin(&self, [_, since, users]: BusyClock) {
        if self.word(users as usize).fetch_add(1, Ordering::AcqRel) == 0 {
            self.word(since as usize).store(now(), Ordering::Release);
        }
    }

    /// Ends a user of a clock.
    pub(crate) fn end(&self, [sum, since, users]: BusyClock) {
        // Before the last user leaves: afterwards, a new one may set it.
        let since = self.word(since as usize).load(Ordering::Acquire);
        if self.word(users as usize).fetch_sub(1, Ordering::AcqRel) == 1 {
            self.add(sum, now().saturating_sub(since));
        }
    }

    /// Returns the words.
    pub(super) fn words(&self) -> [u64; DEVICE.0 / 8] {
        std::array::from_fn(|number| self.word(number).load(Ordering::Relaxed))
    }
}

/// Returns the sum of a clock of a page's words, up to now.
pub(super) fn elapsed(words: &[u64], [sum, since, users]: BusyClock) -> Duration {
    let word = |of: PageWord| words[of as usize];
    let running = if word(users) == 0 { 0 } else { now().saturating_sub(word(since)) };
    Duration::from_nanos(word(sum).saturating_add(running))
}

/// Returns the time of the monotonic clock, which all processes share, in nanoseconds.
fn now() -> u64 {
    let time = clock_gettime(ClockId::CLOCK_MONOTONIC).map(Duration::from);
    time.map_or(0, |time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
}

impl Drop for CounterPage {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, and used by nobody any more.
        if let Err(error) = unsafe { munmap(self.memory.cast(), PAGE_BYTES) } {
            tracing::error!(%error, "cannot unmap the counters of a ring");
        }
    }
}
