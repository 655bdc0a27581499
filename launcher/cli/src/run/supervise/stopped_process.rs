//! A process that is stopped.

use std::time::Instant;

/// A process of the agents' job that is stopped.
#[derive(Clone, Copy, Debug)]
pub(super) struct StoppedProcess {
    pub(super) pid: i32,
    /// The time at which it was first seen stopped.
    pub(super) since: Instant,
}
