//! Copying a filled buffer to the other hosts, as bytes.

#![allow(unsafe_code, reason = "reads and writes parts of the buffer by address")]

use std::sync::Arc;
use std::time::Instant;

use tracing::{info, info_span};

use crate::agree::election;
use crate::carrier::{self, Carrier, JoinedHosts};
use crate::error::{Bytes, Error, Result};
use crate::fill::turn::{FillFrom, FillTurn};
use crate::job::{Collective, HostIndex, Hosts, Reduce, all_or_none};
use crate::segment::fill_state::FillState;
use crate::segment::handle::HostBuffer;
use hostbuf_os::process;

/// The number of bytes that are sent at a time: large enough for the full bandwidth of the network,
/// small enough that checksumming one part overlaps with the transfer of the next.
const CHUNK: usize = 16 << 20;

impl HostBuffer {
    /// Sends the filled buffer of `root`'s host to all other hosts of `group`, where it must be
    /// empty: the bytes up to the high-water mark, checksummed. Pointers inside stay valid, since
    /// the address is the same. Collective. The leaders of the hosts move the data: by RDMA along a
    /// tree if a `hostbuf_rdma::Fabric` joins them for this buffer, by the group's broadcast
    /// otherwise.
    ///
    /// It also compares hosts that do not know each other yet (`hostbuf exec`).
    ///
    /// # Errors
    /// On all ranks: [`Error::Disagreed`] if the hosts have different addresses or sizes, if the
    /// ranks of one host have different buffers, or if the ranks pass different roots;
    /// [`Error::Fill`] if the buffer of `root`'s host is not filled or another one is;
    /// [`Error::Replicate`] if a checksum differs (the buffer of that host is empty again).
    ///
    /// # Panics
    /// If `root` is not a rank of `group`.
    pub fn replicate(&self, group: &dyn Collective, root: usize) -> Result<()> {
        self.replicate_with(group, root, &mut |_, _| {})
    }

    /// Replicates the buffer as [`replicate`](HostBuffer::replicate) does. On `root`'s leader,
    /// `progress` is called with the number of bytes sent and the number of all bytes.
    ///
    /// # Errors
    /// As [`replicate`](HostBuffer::replicate).
    ///
    /// # Panics
    /// As [`replicate`](HostBuffer::replicate).
    pub fn replicate_with(
        &self,
        group: &dyn Collective,
        root: usize,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<()> {
        assert!(root < group.size(), "root {root} of {} ranks", group.size());
        let _span = info_span!("replicate", buffer = %self.name()).entered();
        let begun = Instant::now();
        let hosts = Hosts::new(group)?;
        self.compare(group, &hosts)?;
        self.same_source(group, root)?;
        let source = hosts.host_of[root];
        let ready = if hosts.leads() { self.ready(hosts.index == source) } else { Ok(None) };
        let turn = all_or_none(group, ready)?;
        // The description of the source: the high-water mark, the root object, and its type.
        let header = if hosts.leads() && hosts.index == source { self.header() } else { Ok([0; 3]) };
        let mut header = all_or_none(group, header)?;
        group.all_reduce(&mut header, Reduce::Max)?;
        let sent = if hosts.leads() { self.stream(&hosts, source, header[0], progress) } else { Ok(()) };
        all_or_none(group, sent)?;
        if let Some(turn) = turn {
            self.control().set_high_water(self.index, header[0]);
            turn.complete(header[1], header[2]);
        }
        group.barrier()?;
        if group.rank() == root {
            info!(bytes = header[0], hosts = hosts.count, elapsed = ?begun.elapsed(), "replicated");
        }
        Ok(())
    }

    /// Checks that all ranks of a host have the same memory, and that its address and size, and the
    /// address of the GPU sections, are the same on all hosts. Collective.
    ///
    /// # Errors
    /// [`Error::Disagreed`] on all ranks, with the rank that differs; [`Error::Collective`].
    pub fn compare(&self, group: &dyn Collective, hosts: &Hosts) -> Result<()> {
        // Buffers that ranks have allocated separately may have the same address.
        let memory = self.identity().inode;
        let mut local = [memory, !memory];
        hosts.local.all_reduce(&mut local, Reduce::Min)?;
        let is_one = local[0] == !local[1];
        let gpus = self.control().gpu_range(self.index).ok().flatten().unwrap_or(0);
        let mine = [self.as_ptr().as_ptr() as u64, self.len() as u64, gpus];
        let [address, bytes, range] = mine;
        let mut words = [address, bytes, range, !address, !bytes, !range, u64::from(is_one)];
        group.all_reduce(&mut words, Reduce::Min)?;
        if words == [address, bytes, range, !address, !bytes, !range, 1] {
            return Ok(());
        }
        let (name, length) = (self.name(), Bytes(mine[1]));
        // The error names the ranks that differ from the maximum, or otherwise from the minimum.
        let differs = mine != [!words[3], !words[4], !words[5]];
        let why = match is_one {
            true if words[..2] == [!words[3], !words[4]] => format!(
                "its GPU sections are at {range:#x}, and those of another host are at a different address. Start the job with `hostbuf run`, \
                 which agrees on one address for all hosts"
            ),
            true => format!(
                "its buffer \"{name}\" is {length} at {:#x}, and the one of another host is not",
                mine[0]
            ),
            false => format!(
                "its buffer \"{name}\" is not the one of other ranks of its host. Attach to one buffer, or allocate one with all ranks"
            ),
        };
        Err(election::disagreement(group, (differs || !is_one).then(|| (group.rank(), why))))
    }

    /// Checks that all ranks pass the same root.
    fn same_source(&self, group: &dyn Collective, root: usize) -> Result<()> {
        let mut roots = [root as u64, !(root as u64)];
        group.all_reduce(&mut roots, Reduce::Min)?;
        if roots[0] == !roots[1] {
            return Ok(());
        }
        let why = format!(
            "it replicates buffer \"{}\" from rank {root}, and another rank from rank {}",
            self.name(),
            roots[0]
        );
        Err(election::disagreement(group, (root as u64 != roots[0]).then(|| (group.rank(), why))))
    }

    fn header(&self) -> Result<[u64; 3]> {
        let (at, kind) = self.control().root(self.index)?;
        Ok([self.high_water()?, at, kind])
    }

    /// Checks on the source that the buffer is filled. Takes the turn to fill on the other hosts.
    fn ready(&self, is_source: bool) -> Result<Option<FillTurn<'_>>> {
        let host = process::host_name();
        let why = match (is_source, self.fill_state()?) {
            (true, FillState::Filled | FillState::Frozen) => return Ok(None),
            (true, state) => format!(
                "buffer \"{}\" on {host} is {}, so there is nothing to send",
                self.name(),
                state.name()
            ),
            (false, FillState::Filled | FillState::Frozen) => {
                format!("buffer \"{}\" on {host} is filled already, and would be overwritten", self.name())
            }
            (false, _) => match FillTurn::begin(self, FillFrom::All)? {
                Some(turn) => return Ok(Some(turn)),
                None => format!("buffer \"{}\" on {host} is being filled by another process", self.name()),
            },
        };
        Err(Error::Fill { why })
    }

    /// Returns the carrier that joins this buffer's parts on all hosts, if there is one that is
    /// ready and the same on all hosts.
    fn carrier(&self, hosts: &Hosts) -> Result<Option<(Arc<dyn Carrier>, u64)>> {
        let start = self.as_ptr().as_ptr() as usize;
        let found = carrier::find(JoinedHosts { start, count: hosts.count, own: hosts.index })
            .map(|carrier| (carrier.prepare(), carrier));
        let number = found.as_ref().map_or(0, |(_, carrier)| carrier.number());
        let mut all = [u64::from(found.is_some()), number, !number];
        // No host begins before all are ready.
        hosts.leaders.all_reduce(&mut all, Reduce::Min)?;
        let same = all[0] == 1 && all[1] == !all[2];
        Ok(found.filter(|_| same).map(|(prepared, carrier)| (carrier, prepared)))
    }

    /// Sends the bytes among the leaders, and compares the checksums of the received bytes.
    fn stream(
        &self,
        hosts: &Hosts,
        source: HostIndex,
        bytes: u64,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<()> {
        if bytes > self.len() as u64 {
            return Err(Error::Corrupt { word: "the high-water mark", found: bytes });
        }
        if hosts.count == 1 {
            return Ok(());
        }
        let mut hash = xxhash_rust::xxh3::Xxh3::new();
        // SAFETY: inside the mapping. On the source no process writes (the buffer is filled).
        // Elsewhere only this process may write (it has the turn), and the slice that it writes
        // through lives only as long as the collective call.
        let part = |at: usize, length: usize| unsafe {
            std::slice::from_raw_parts_mut(self.as_ptr().as_ptr().add(at), length)
        };
        let mut arrived = |at: usize, length: usize| {
            hash.update(part(at, length));
            if hosts.index != source {
                // For `hostbuf stat`, which shows the progress.
                self.control().set_high_water(self.index, (at + length) as u64);
            }
            progress((at + length) as u64, bytes);
        };
        match self.carrier(hosts)? {
            Some((carrier, prepared)) => {
                let carried = carrier.carry(prepared, source, bytes as usize, &mut arrived);
                all_or_none(&*hosts.leaders, carried)?;
            }
            None => {
                let mut at = 0;
                while at < bytes as usize {
                    let length = CHUNK.min(bytes as usize - at);
                    hosts.leaders.broadcast(part(at, length), source.0)?;
                    arrived(at, length);
                    at += length;
                }
            }
        }
        let digest = hash.digest();
        let mut words = [digest, !digest];
        if hosts.index != source {
            words = [u64::MAX; 2];
        }
        hosts.leaders.all_reduce(&mut words, Reduce::Min)?;
        if words[0] == digest {
            return Ok(());
        }
        let why = format!(
            "the checksum of the received bytes is {digest:#018x}, and that of the sent bytes is {:#018x}",
            words[0]
        );
        Err(Error::Replicate { host: process::host_name(), why })
    }
}
