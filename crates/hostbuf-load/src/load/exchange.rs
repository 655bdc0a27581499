//! Windows that the hosts send to each other.

#![allow(unsafe_code, reason = "receives the bytes of other hosts by address")]

use std::ops::Range;
use std::sync::atomic::Ordering;
use std::time::Instant;

use hostbuf::Error;
use hostbuf::job::{HostIndex, Hosts, Reduce};
use hostbuf_os::process;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::window_pieces;
use crate::error::LoadError;
use crate::shared::{LoadBoard, LoadedRegion, add_time};

/// The exchange of windows among the leaders of the hosts.
pub(super) struct WindowExchange<'l> {
    pub(super) hosts: &'l Hosts,
    pub(super) region: &'l LoadedRegion,
    pub(super) board: &'l LoadBoard,
    /// The sum of the checksums of all windows that were exchanged.
    pub(super) digest: u64,
}

/// Returns the windows that a host reads: a range of `windows` windows, nearly as many as those of
/// each other host.
pub(super) fn windows_of(host: HostIndex, hosts: usize, windows: u64) -> Range<u64> {
    let start = |host: usize| (u128::from(windows) * host as u128 / hosts as u128) as u64;
    start(host.0)..start(host.0 + 1)
}

impl WindowExchange<'_> {
    /// Sends the windows of this host with the numbers `round` among its own to the other hosts,
    /// and receives theirs. Collective among the leaders.
    ///
    /// # Errors
    /// [`LoadError::Job`] if the collective operation fails; [`LoadError::Damaged`] if a window of
    /// this host is not ready, after all windows of the round were exchanged.
    pub(super) fn run(&mut self, round: Range<u64>) -> Result<(), LoadError> {
        tracing::debug!(?round, "exchanging windows with the other hosts");
        let begun = Instant::now();
        let result = self.exchange(round);
        add_time(&self.board.counters().replicating, begun.elapsed());
        result
    }

    fn exchange(&mut self, round: Range<u64>) -> Result<(), LoadError> {
        let root = *self.region.root();
        let mut all_ready = true;
        for number in round {
            for host in (0..self.hosts.count).map(HostIndex) {
                let windows = windows_of(host, self.hosts.count, root.windows());
                let Some(window) = windows.start.checked_add(number).filter(|at| windows.contains(at)) else {
                    continue;
                };
                let is_own = host == self.hosts.index;
                all_ready &= !is_own || self.board.is_ready(window);
                let place = window_pieces::window(window, root.window_bytes, root.region_bytes);
                let bytes = place.end - place.start;
                // SAFETY: on the host that has read the window nothing writes to it any more; on
                // the others only the leader does.
                let memory = unsafe { self.region.bytes_mut(place) };
                self.hosts.leaders.broadcast(memory, host.0)?;
                self.digest = self.digest.wrapping_add(xxh3_64_with_seed(memory, window));
                if !is_own {
                    self.board.counters().bytes_received.fetch_add(bytes, Ordering::Relaxed);
                    self.board.set_ready(window);
                }
            }
        }
        if all_ready { Ok(()) } else { Err(LoadError::Damaged) }
    }

    /// Compares the checksums of all hosts. Collective among the leaders.
    ///
    /// # Errors
    /// [`LoadError::Job`] with [`Error::Replicate`] if they differ.
    pub(super) fn compare(&self) -> Result<(), LoadError> {
        let mut words = [self.digest, !self.digest];
        self.hosts.leaders.all_reduce(&mut words, Reduce::Min)?;
        if words[0] == !words[1] {
            return Ok(());
        }
        let why = format!(
            "the checksum of all windows is {:#018x} here and {:#018x} on another host: load the files again",
            self.digest,
            if words[0] == self.digest { !words[1] } else { words[0] }
        );
        Err(Error::Replicate { host: process::host_name(), why }.into())
    }
}
