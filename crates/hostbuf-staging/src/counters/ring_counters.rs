//! The counters of a ring.

use std::fmt;
use std::time::Duration;

use super::counter_page::{ACTIVE, COPYING, CounterPage, PageWord, elapsed};

/// The counts of a ring since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RingCounters {
    /// The number of threads.
    pub workers: u64,
    /// The number of transfers that were started.
    pub transfers: u64,
    /// The number of bytes that the device was given.
    pub to_device: u64,
    /// The number of bytes that the device has given.
    pub from_device: u64,
    /// The number of copies of the device.
    pub copies: u64,
    /// The time in which there was a transfer.
    pub active: Duration,
    /// The time in which the device had a copy to do.
    pub copying: Duration,
    /// The time that threads have spent in reads of sources, of all threads together.
    pub reading: Duration,
    /// The time that threads have spent in writes to sinks, of all threads together.
    pub writing: Duration,
    /// The time that threads have waited for the device, because there was nothing else to do, of
    /// all threads together.
    pub waiting_for_device: Duration,
    /// The time that threads have waited for a slot that other threads filled, of all threads
    /// together.
    pub waiting_for_slot: Duration,
}

/// The part of a ring that bounds the rate of its transfers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StagingBound {
    /// There was no transfer.
    Idle,
    /// The reads of sources: the threads read most of the time.
    Source,
    /// The writes to sinks: the threads write most of the time.
    Sink,
    /// The copies of the device, which has one most of the time.
    Device,
    /// The number of slots: neither the threads nor the device were busy most of the time.
    Slots,
}

impl StagingBound {
    /// Returns the name: `idle`, `source`, `sink`, `device` or `slots`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            StagingBound::Idle => "idle",
            StagingBound::Source => "source",
            StagingBound::Sink => "sink",
            StagingBound::Device => "device",
            StagingBound::Slots => "slots",
        }
    }
}

impl fmt::Display for StagingBound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl RingCounters {
    /// Returns the counts of a ring of this process.
    pub(crate) fn of_page(page: &CounterPage) -> RingCounters {
        RingCounters::of(&page.words())
    }

    /// Reads the words of a page.
    pub(super) fn of(words: &[u64]) -> RingCounters {
        let count = |word: PageWord| words[word as usize];
        let time = |word: PageWord| Duration::from_nanos(count(word));
        RingCounters {
            workers: count(PageWord::Workers),
            transfers: count(PageWord::Transfers),
            to_device: count(PageWord::ToDevice),
            from_device: count(PageWord::FromDevice),
            copies: count(PageWord::Copies),
            active: elapsed(words, ACTIVE),
            copying: elapsed(words, COPYING),
            reading: time(PageWord::Reading),
            writing: time(PageWord::Writing),
            waiting_for_device: time(PageWord::WaitingForDevice),
            waiting_for_slot: time(PageWord::WaitingForSlot),
        }
    }

    /// Returns the counts since an earlier state of the same ring.
    #[must_use]
    pub fn since(&self, earlier: &RingCounters) -> RingCounters {
        RingCounters {
            workers: self.workers,
            transfers: self.transfers.saturating_sub(earlier.transfers),
            to_device: self.to_device.saturating_sub(earlier.to_device),
            from_device: self.from_device.saturating_sub(earlier.from_device),
            copies: self.copies.saturating_sub(earlier.copies),
            active: self.active.saturating_sub(earlier.active),
            copying: self.copying.saturating_sub(earlier.copying),
            reading: self.reading.saturating_sub(earlier.reading),
            writing: self.writing.saturating_sub(earlier.writing),
            waiting_for_device: self.waiting_for_device.saturating_sub(earlier.waiting_for_device),
            waiting_for_slot: self.waiting_for_slot.saturating_sub(earlier.waiting_for_slot),
        }
    }

    /// Returns the bytes a second in both directions, while there was a transfer.
    #[must_use]
    pub fn rate(&self) -> f64 {
        let seconds = self.active.as_secs_f64();
        if seconds > 0.0 { (self.to_device as f64 + self.from_device as f64) / seconds } else { 0.0 }
    }

    /// Returns what bounds the rate: the part that was busy for the largest share of the time, if
    /// that is at least two thirds.
    #[must_use]
    pub fn bound(&self) -> StagingBound {
        const BUSY: f64 = 2.0 / 3.0;
        let active = self.active.as_secs_f64();
        if active == 0.0 {
            return StagingBound::Idle;
        }
        let of_threads = |time: Duration| time.as_secs_f64() / active / self.workers.max(1) as f64;
        let (reading, writing) = (of_threads(self.reading), of_threads(self.writing));
        let copying = self.copying.as_secs_f64() / active;
        match (reading + writing, copying) {
            (threads, copying) if threads.max(copying) < BUSY => StagingBound::Slots,
            (threads, copying) if copying >= threads => StagingBound::Device,
            _ if reading >= writing => StagingBound::Source,
            _ => StagingBound::Sink,
        }
    }
}
