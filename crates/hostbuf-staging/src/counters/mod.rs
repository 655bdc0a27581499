//! The counters of rings, which other processes can read.

mod counter_page;
mod ring_counters;
mod ring_status;

pub(crate) use counter_page::{ACTIVE, COPYING, CounterPage, PageWord, RingShape};
pub use ring_counters::{RingCounters, StagingBound};
pub use ring_status::RingStatus;
