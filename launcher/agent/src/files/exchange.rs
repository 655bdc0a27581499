//! The windows of a file that the hosts send to each other.

#![allow(unsafe_code, reason = "receives the bytes of other hosts by address")]

use std::ops::Range;

use hostbuf::job::{Collective, Reduce};
use hostbuf::{ErrorClass, JobError};
use hostbuf_memory::FileMapping;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::input_file::{InputFile, refusal};
use super::window_share::{WindowShare, place};

/// The exchange of the windows of a file among the hosts.
pub(super) struct FileExchange<'l> {
    pub(super) group: &'l dyn Collective,
    /// The names of the hosts, in the order of their agents.
    pub(super) hosts: &'l [String],
    pub(super) input: &'l InputFile,
    pub(super) mapping: &'l FileMapping,
    pub(super) share: WindowShare,
    /// The number of bytes that this host has received.
    pub(super) received: u64,
}

impl FileExchange<'_> {
    /// Sends the windows of `round` that this host has read to the other hosts, and receives
    /// theirs. `progress` is called with the number of bytes received so far. Collective.
    ///
    /// # Errors
    /// Those of the collective operations; [`ErrorClass::Replicate`] on a host that has another
    /// checksum of a window than the host that has read it, after all windows were exchanged.
    pub(super) fn run(&mut self, round: Range<u64>, progress: &mut dyn FnMut(u64)) -> Result<(), JobError> {
        tracing::debug!(file = %self.input.path().display(), ?round, "exchanging windows with the other hosts");
        let bytes = self.mapping.len();
        let mut own = Vec::with_capacity((round.end - round.start) as usize);
        for window in round.clone() {
            let (place, host) = (place(window, bytes), self.share.host_of(window) as usize);
            let length = place.end - place.start;
            // SAFETY: within the mapping, whose pages exist. No other thread accesses it: those
            // that read have other windows, and no other process has the file yet.
            let memory = unsafe {
                let at = (self.mapping.start() + place.start as usize) as *mut u8;
                std::slice::from_raw_parts_mut(at, length as usize)
            };
            self.group.broadcast(memory, host)?;
            own.push(xxh3_64_with_seed(memory, window));
            if host != self.group.rank() {
                self.received += length;
                progress(self.received);
            }
        }
        // Each word comes from the host that has read the window, and the others add nothing.
        let of_reader = |(window, sum): (u64, &u64)| if self.share.is_own(window) { *sum } else { 0 };
        let mut sent: Vec<u64> = round.clone().zip(&own).map(of_reader).collect();
        self.group.all_reduce(&mut sent, Reduce::Sum)?;
        let differs = round.zip(own.into_iter().zip(sent)).find(|(_, (own, sent))| own != sent);
        differs.map_or(Ok(()), |(window, sums)| Err(self.damaged(window, sums)))
    }

    /// Returns the error of a window that has arrived with another checksum.
    fn damaged(&self, window: u64, (own, sent): (u64, u64)) -> JobError {
        let place = place(window, self.mapping.len());
        let reader =
            self.hosts.get(self.share.host_of(window) as usize).map_or("another host", String::as_str);
        let why = format!(
            "the {} bytes at offset {} have arrived from {reader} with the checksum {own:#018x} instead of {sent:#018x}. Start the \
             job again; if it fails again, check the memory and the network of both hosts",
            place.end - place.start,
            place.start
        );
        refusal(ErrorClass::Replicate, self.input.path(), &why)
    }
}
