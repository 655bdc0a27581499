//! Sending a filled buffer to the other hosts, as bytes.

#![allow(unsafe_code)]

use std::sync::Arc;
use std::time::Instant;

use tracing::{info, info_span};

use crate::agree::election;
use crate::carrier::{self, Carrier};
use crate::error::{Bytes, Error, Result};
use crate::fill::turn::{FillFrom, Turn};
use crate::job::{Collective, Hosts, Reduce, all_or_none};
use crate::segment::fill_state::FillState;
use crate::segment::handle::HostBuffer;
use hostbuf_os::process;

/// Bytes sent at a time: large enough for the network's full speed, small enough that checking one
/// overlaps with the next one's way.
const CHUNK: usize = 16 << 20;

impl HostBuffer {
    /// Sends the filled buffer of `root`'s host to all other hosts of `group`, where it must be
    /// empty: the bytes up to the high-water mark, checksummed. Pointers inside stay valid, since
    /// the address is the same. Collective; the hosts' leaders move the data: by RDMA along a tree
    /// where they are joined for this buffer (by a `rdma::Fabric`), by the collective's broadcast
    /// otherwise.
    ///
    /// This is also where hosts that do not know each other (`hostbuf exec`) are compared.
    ///
    /// # Errors
    /// [`Error::Disagreed`] when the hosts have different addresses or sizes, ranks of one host
    /// different buffers, or the ranks name different roots; [`Error::Fill`] when `root`'s host is
    /// not filled or another one is; [`Error::Replicate`] when a checksum differs (that host is
    /// empty again); on all ranks.
    ///
    /// # Panics
    /// When `root` is no rank of `group`.
    pub fn replicate(&self, group: &dyn Collective, root: usize) -> Result<()> {
        self.replicate_with(group, root, &mut |_, _| {})
    }

    /// The same; `progress` hears on `root`'s leader how many bytes of how many are sent.
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
        let hosts = Hosts::of(group)?;
        self.compare(group, &hosts)?;
        self.same_source(group, root)?;
        let source = hosts.host_of[root];
        let ready = if hosts.leads() { self.ready(hosts.index == source) } else { Ok(None) };
        let turn = all_or_none(group, ready)?;
        // What the source says of itself: high-water mark, root object, its type.
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

    /// Checks that all ranks of a host have the same memory, and that address and size are the same
    /// on all hosts. Collective.
    ///
    /// # Errors
    /// [`Error::Disagreed`] on all ranks, which names the one that differs; [`Error::Collective`].
    pub fn compare(&self, group: &dyn Collective, hosts: &Hosts) -> Result<()> {
        // Buffers that ranks have made each for itself may well stand at one address.
        let memory = self.identity().inode;
        let mut local = [memory, !memory];
        hosts.local.all_reduce(&mut local, Reduce::Min)?;
        let is_one = local[0] == !local[1];
        let mine = [self.as_ptr().as_ptr() as u64, self.len() as u64];
        let mut words = [mine[0], mine[1], !mine[0], !mine[1], u64::from(is_one)];
        group.all_reduce(&mut words, Reduce::Min)?;
        if words == [mine[0], mine[1], !mine[0], !mine[1], 1] {
            return Ok(());
        }
        let (name, length) = (self.name(), Bytes(mine[1]));
        // The ranks that differ from the greatest, or else from the least, are the ones to name.
        let differs = mine != [!words[2], !words[3]];
        let why = match is_one {
            true => format!("its buffer \"{name}\" is {length} at {:#x}, and another host's is not", mine[0]),
            false => format!(
                "its buffer \"{name}\" is not the one that other ranks of its host have: attach to one, or allocate one with all of them"
            ),
        };
        Err(election::disagreement(group, (differs || !is_one).then(|| (group.rank(), why))))
    }

    /// All ranks send from the same host.
    fn same_source(&self, group: &dyn Collective, root: usize) -> Result<()> {
        let mut roots = [root as u64, !(root as u64)];
        group.all_reduce(&mut roots, Reduce::Min)?;
        if roots[0] == !roots[1] {
            return Ok(());
        }
        let why = format!(
            "it wants buffer \"{}\" replicated from rank {root}, and another rank from rank {}",
            self.name(),
            roots[0]
        );
        Err(election::disagreement(group, (root as u64 != roots[0]).then(|| (group.rank(), why))))
    }

    fn header(&self) -> Result<[u64; 3]> {
        let (at, kind) = self.control().root(self.index)?;
        Ok([self.high_water()?, at, kind])
    }

    /// On the source: filled. Elsewhere: this process's turn to fill.
    fn ready(&self, is_source: bool) -> Result<Option<Turn<'_>>> {
        let host = process::host_name();
        let why = match (is_source, self.fill_state()?) {
            (true, FillState::Filled | FillState::Frozen) => return Ok(None),
            (true, state) => format!(
                "buffer \"{}\" on {host} is {}, and there is nothing to send",
                self.name(),
                state.name()
            ),
            (false, FillState::Filled | FillState::Frozen) => {
                format!("buffer \"{}\" on {host} is filled already, and would be overwritten", self.name())
            }
            (false, _) => match Turn::begin(self, FillFrom::All)? {
                Some(turn) => return Ok(Some(turn)),
                None => format!("buffer \"{}\" on {host} is being filled by another process", self.name()),
            },
        };
        Err(Error::Fill { why })
    }

    /// What joins all hosts' parts of this buffer, if there is such a thing, the same on all of
    /// them, and ready.
    fn carrier(&self, hosts: &Hosts) -> Result<Option<(Arc<dyn Carrier>, u64)>> {
        let found = carrier::find(self.as_ptr().as_ptr() as usize, hosts.count, hosts.index)
            .map(|carrier| (carrier.prepare(), carrier));
        let number = found.as_ref().map_or(0, |(_, carrier)| carrier.number());
        let mut all = [u64::from(found.is_some()), number, !number];
        // Nobody begins before all are ready.
        hosts.leaders.all_reduce(&mut all, Reduce::Min)?;
        let same = all[0] == 1 && all[1] == !all[2];
        Ok(found.filter(|_| same).map(|(prepared, carrier)| (carrier, prepared)))
    }

    /// Among the leaders: the bytes, then the comparison of what arrived.
    fn stream(
        &self,
        hosts: &Hosts,
        source: usize,
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
        // SAFETY: inside the mapping; on the source nobody writes (it is filled), elsewhere only
        // this process may (it has the turn), and what it may write through lives only as long as
        // the collective's call.
        let part = |at: usize, length: usize| unsafe {
            std::slice::from_raw_parts_mut(self.as_ptr().as_ptr().add(at), length)
        };
        let mut arrived = |at: usize, length: usize| {
            hash.update(part(at, length));
            if hosts.index != source {
                // So that whoever watches sees how far it is.
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
                    hosts.leaders.broadcast(part(at, length), source)?;
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
        let why = format!("checksum {digest:#018x} arrived, {:#018x} was sent", words[0]);
        Err(Error::Replicate { host: process::host_name(), why })
    }
}
