//! The state of a load that the ranks of a host share: claims of windows, a word for each window,
//! and counters.
//!
//! It lies in the buffer, where any process of the job may write. References are made to atomics
//! only, and no value is trusted: a wrong claim is outside of the windows, or reads a window again;
//! a window that is not ready at the end is an error; counters are for display.

#![allow(unsafe_code, reason = "the board is accessed by address while other processes write it")]

use std::fmt;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use super::load_memory::LoadMemory;
use crate::clock::since_boot;

/// The value of the word of a window whose bytes are there.
const READY: u32 = 0x5944_4552;

/// The counters of a load. Times are in nanoseconds.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub(crate) struct BoardCounters {
    pub(crate) bytes_read: AtomicU64,
    pub(crate) bytes_received: AtomicU64,
    pub(crate) job_bytes_read: AtomicU64,
    pub(crate) reading: AtomicU64,
    pub(crate) waiting: AtomicU64,
    pub(crate) replicating: AtomicU64,
    pub(crate) readers: AtomicU64,
    /// The time of the beginning since the host was booted.
    pub(crate) begun: AtomicU64,
    /// The time of the end; 0 before.
    pub(crate) ended: AtomicU64,
}

#[repr(C, align(64))]
struct BoardHead {
    /// The number of windows of this host that ranks have claimed.
    claimed: AtomicU64,
    /// Not 0 if a rank of this host has failed.
    stopped: AtomicU32,
    counters: BoardCounters,
}

/// The state of a load that the ranks of a host share.
#[derive(Clone)]
pub(crate) struct LoadBoard {
    head: NonNull<BoardHead>,
    words: NonNull<AtomicU32>,
    windows: u64,
    /// The owner of the mapping.
    _memory: LoadMemory,
}

// SAFETY: the board is shared memory that is accessed as atomics only.
unsafe impl Send for LoadBoard {}
// SAFETY: as above.
unsafe impl Sync for LoadBoard {}

impl LoadBoard {
    /// Returns the number of bytes of the board of a load of `windows` windows, saturating.
    pub(crate) fn bytes(windows: u64) -> u64 {
        windows.saturating_mul(size_of::<AtomicU32>() as u64).saturating_add(size_of::<BoardHead>() as u64)
    }

    /// Returns the board at an offset of the memory of a load.
    ///
    /// # Panics
    /// If the board is not within the memory, or not aligned to 64 bytes.
    pub(crate) fn at(memory: &LoadMemory, offset: u64, windows: u64) -> LoadBoard {
        let end = offset.checked_add(LoadBoard::bytes(windows));
        assert!(end.is_some_and(|end| end <= memory.bytes()) && offset.is_multiple_of(64));
        // SAFETY: within the mapping. Its memory begins at a page, so the board is aligned.
        let (head, words) = unsafe {
            let head = memory.as_ptr().add(offset as usize);
            (head.cast(), head.add(size_of::<BoardHead>()).cast())
        };
        LoadBoard { head, words, windows, _memory: memory.clone() }
    }

    fn head(&self) -> &BoardHead {
        // SAFETY: mapped as long as the memory is kept, aligned, and atomics only.
        unsafe { self.head.as_ref() }
    }

    fn word(&self, window: u64) -> Option<&AtomicU32> {
        // SAFETY: as for the head; the index is within the words.
        (window < self.windows).then(|| unsafe { self.words.add(window as usize).as_ref() })
    }

    /// Makes the board that of a load that has not begun. No other process uses it yet.
    fn reset(&self) {
        let BoardHead { claimed, stopped, counters } = self.head();
        claimed.store(0, Ordering::Relaxed);
        stopped.store(0, Ordering::Relaxed);
        let BoardCounters {
            bytes_read,
            bytes_received,
            job_bytes_read,
            reading,
            waiting,
            replicating,
            readers,
            begun,
            ended,
        } = counters;
        for counter in
            [bytes_read, bytes_received, job_bytes_read, reading, waiting, replicating, readers, begun, ended]
        {
            counter.store(0, Ordering::Relaxed);
        }
        (0..self.windows).filter_map(|window| self.word(window)).for_each(|word| {
            word.store(0, Ordering::Release);
        });
    }

    /// Makes the board that of a load that begins now. No other process uses it yet.
    pub(crate) fn begin(&self) {
        self.reset();
        self.counters().begun.store(since_boot().as_nanos() as u64, Ordering::Relaxed);
    }

    /// Claims the next window of this host, if fewer than `limit` are claimed. Returns its number
    /// among those of this host.
    pub(crate) fn claim(&self, limit: u64) -> Option<u64> {
        let next = |claimed: u64| (claimed < limit).then(|| claimed + 1);
        self.head().claimed.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).ok()
    }

    /// Marks the bytes of a window as readable.
    pub(crate) fn set_ready(&self, window: u64) {
        if let Some(word) = self.word(window) {
            // Release, for whoever reads the bytes.
            word.store(READY, Ordering::Release);
        }
    }

    /// Returns whether the bytes of a window are readable.
    pub(crate) fn is_ready(&self, window: u64) -> bool {
        self.word(window).is_some_and(|word| word.load(Ordering::Acquire) == READY)
    }

    /// Tells the other ranks of this host that this one has failed.
    pub(crate) fn stop(&self) {
        self.head().stopped.store(1, Ordering::Relaxed);
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.head().stopped.load(Ordering::Relaxed) != 0
    }

    pub(crate) fn counters(&self) -> &BoardCounters {
        &self.head().counters
    }
}

/// Adds a time to a counter of nanoseconds.
pub(crate) fn add_time(counter: &AtomicU64, time: Duration) {
    counter.fetch_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
}

impl fmt::Debug for LoadBoard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let claimed = self.head().claimed.load(Ordering::Relaxed);
        f.debug_struct("LoadBoard").field("windows", &self.windows).field("claimed", &claimed).finish()
    }
}

#[cfg(test)]
mod tests {
    use hostbuf::job::Solo;
    use hostbuf::{BufferOptions, HostBuffer};

    use super::*;

    fn board(windows: u64) -> LoadBoard {
        let buffer = HostBuffer::allocate(&Solo, BufferOptions::new(1 << 16)).expect("there is memory");
        let board = LoadBoard::at(&LoadMemory::of_buffer(&buffer), 64, windows);
        board.reset();
        board
    }

    #[test]
    fn each_window_is_claimed_once_up_to_the_limit() {
        let board = board(1000);
        let mut all: Vec<u64> = std::thread::scope(|scope| {
            let claim_all = || (0..).map_while(|_| board.claim(700)).collect::<Vec<_>>();
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(claim_all)).collect();
            threads.into_iter().flat_map(|thread| thread.join().expect("it does not panic")).collect()
        });
        all.sort_unstable();
        assert!(all.into_iter().eq(0..700));
        // The next round goes on after them.
        assert_eq!((board.claim(701), board.claim(701)), (Some(700), None));
    }

    #[test]
    fn only_windows_that_were_set_are_ready() {
        let board = board(10);
        board.set_ready(3);
        board.set_ready(10);
        let ready: Vec<u64> = (0..20).filter(|&window| board.is_ready(window)).collect();
        assert_eq!(ready, [3]);
        // Another process has written into the board.
        board.word(4).expect("there is such a window").store(1, Ordering::Relaxed);
        board.head().claimed.store(u64::MAX, Ordering::Relaxed);
        assert!(!board.is_ready(4) && board.claim(10).is_none());
    }

    #[test]
    #[should_panic(expected = "assertion failed")]
    fn a_board_beyond_the_buffer_is_refused() {
        board(1 << 20);
    }
}
