//! The monitor, which reports to caches that the pages behind an address have changed.
//!
//! One monitor serves all caches of a process, since only one userfaultfd can watch a mapping.
//! [`current`] starts it and lets it prove in [`self_test`] that it sees changes. Requests have
//! memory watched ([`watch`]) and wait for changes in progress ([`settle`]); the monitor's thread
//! reads the kernel's events and applies them ([`events`]).

mod busy_ranges;
mod change_mark;
mod change_sequence;
mod current;
#[cfg(any(test, feature = "testing"))]
pub mod delays;
mod descriptor_set;
mod events;
mod handle;
mod mappings;
mod mode;
mod monitor_shared;
mod process_monitor;
mod recent_discards;
mod residual;
#[cfg(all(test, not(loom)))]
mod scenarios;
mod self_test;
mod settle;
mod unwatch;
mod userfaultfd;
mod watch;
mod watched;
mod watched_ranges;

pub(super) use descriptor_set::DescriptorSet;
pub(super) use handle::MonitorHandle;
pub use mode::MonitorMode;
pub(super) use watched::{Unwatched, Watched, Watcher};
