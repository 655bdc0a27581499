//! Limits and intervals that several modules share.

use std::time::Duration;

/// The maximum number of work requests that are posted with one call.
pub(crate) const MAX_BATCH: usize = 32;
/// The maximum number of bytes of one work request. Longer transfers are split.
pub(crate) const MAX_REQUEST_BYTES: usize = 1 << 30;
/// The interval at which a process that waits for a peer checks that the peer's process exists.
pub(crate) const ALIVE_INTERVAL: Duration = Duration::from_secs(1);
