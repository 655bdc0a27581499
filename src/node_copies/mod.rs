//! Copies of the sections of a frozen buffer on the NUMA nodes of the ranks that read them
//! (`numa=copies`), at the same address.

#![allow(unsafe_code, reason = "replaces the mapping of a section by that of its copy")]

pub(crate) mod buffer_copies;
pub(crate) mod rank_node;

use std::os::fd::{AsRawFd, OwnedFd};

use tracing::{info_span, warn};

use crate::agree::handover::Handover;
use crate::error::{Error, Result};
use crate::job::{Collective, Hosts, Reduce, all_or_none, cores_of, random_number};
use crate::proof::Proof;
use crate::segment::handle::HostBuffer;
use crate::segment::{COPIES_NAME, SectionIdentity, file_name};

use buffer_copies::KnownCopies;
use hostbuf_memory::NodeCopy;
use hostbuf_memory::placement::HostNodes;
use hostbuf_os::cores::Cores;
use hostbuf_os::{NodeId, process};
pub use rank_node::{RankNode, ReadNode};

impl HostBuffer {
    /// Makes the copies of the sections with [`Placement::Copies`](crate::Placement::Copies) of the
    /// frozen buffer, one on each node that has cores of a rank of `group`, and maps in each rank
    /// the copy of the node of that rank. Returns the node of each rank, or an empty list if no
    /// section has copies. Collective.
    ///
    /// # Errors
    /// On all ranks: [`Error::Freeze`] if the copies cannot be made, in which case all ranks read
    /// the original pages; [`Error::Collective`].
    pub(crate) fn copy_to_nodes(
        &self,
        group: &dyn Collective,
        hosts: &Hosts,
        proof: &Proof,
    ) -> Result<Vec<RankNode>> {
        let sections: Vec<_> = self.section_identities().filter(|section| section.has_copies()).collect();
        let Some(nodes) = sections.first().map(|section| nodes(section)) else { return Ok(Vec::new()) };
        let known = self.read_node();
        let mut all_known = [u64::from(known.is_some())];
        group.all_reduce(&mut all_known, Reduce::Min)?;
        if let (1, Some(own)) = (all_known[0], known) {
            return own.gather(group, hosts);
        }
        let _span = info_span!("copy", buffer = %self.name(), nodes = nodes.len()).entered();
        let host = HostNodes::of_this_host();
        let own = ReadNode::select(&host, &Cores::own(), &nodes);
        let ranks = own.gather(group, hosts)?;
        // On a host whose ranks all read the original pages there is nothing to copy.
        let copies = ranks.iter().any(|rank| rank.host == hosts.index && rank.node != nodes[0]);
        all_or_none(group, if copies { self.may_copy(proof) } else { Ok(()) })?;
        let readers = hosts.local.split(own.node.0 as usize)?;
        let cores = cores_of(&*readers)?;
        // The names of sockets are those of a host, and a host has one leader for each node.
        let number = random_number(group)?.wrapping_add(u128::from(own.node.0));
        let is_home = own.node == nodes[0];
        let handover = if is_home { Ok(None) } else { Handover::open(&*readers, number).map(Some) };
        let handover = all_or_none(group, handover.map_err(|error| self.without_copies(&error)))?;
        let files = match handover {
            None => Ok(Vec::new()),
            Some(handover) => {
                let cores = host.cores(own.node, &cores);
                handover.lead_files(group, || Ok(vec![self.copy_on(own.node, cores, &host, &sections)?]))
            }
        };
        let files = all_or_none(group, files.map_err(|error| self.without_copies(&error)))?;
        let mapped = self.map_copies(&sections, &files).map_err(|error| self.without_copies(&error));
        if let Err(error) = all_or_none(group, mapped) {
            self.segment.copies[self.index].set(None);
            all_or_none(group, self.remap_read_only())?;
            return Err(error);
        }
        let mut read: Vec<NodeId> =
            ranks.iter().filter(|rank| rank.host == hosts.index).map(|rank| rank.node).collect();
        read.sort_unstable();
        read.dedup();
        self.segment.copies[self.index].set(Some(KnownCopies { own, nodes: read }));
        if hosts.leads() {
            self.name_remote_readers(&ranks, hosts);
        }
        Ok(ranks)
    }

    /// Returns the node from whose memory this process reads the sections with
    /// [`Placement::Copies`](crate::Placement::Copies), or `None` if the buffer has no such
    /// section, or if this process has not frozen it.
    #[must_use]
    pub fn read_node(&self) -> Option<ReadNode> {
        self.segment.copies[self.index].get().map(|copies| copies.own)
    }

    /// Makes the memory file with the copies of all sections on `node`, by `cores`.
    fn copy_on(
        &self,
        node: NodeId,
        cores: Cores,
        host: &HostNodes,
        sections: &[&SectionIdentity],
    ) -> Result<OwnedFd> {
        let copy = NodeCopy {
            name: file_name(self.segment.identity.job, &format!("{COPIES_NAME}{}/{node}", self.name())),
            label: format!("the copies of buffer \"{}\"", self.name()),
            sources: sections.iter().map(|section| self.frozen_bytes(section)).collect(),
            pages: self.pages(),
            node,
            cores,
            host,
        };
        Ok(copy.make()?.file)
    }

    /// Checks that the kernel has sealed the buffer: later writes would change the
    /// original pages, and not their copies.
    fn may_copy(&self, proof: &Proof) -> Result<()> {
        match proof {
            Proof::Sealed => Ok(()),
            Proof::Weaker { why } => Err(self.without_copies(&format_args!(
                "hostbuf copies only sealed memory, and the kernel did not seal this buffer: {why}. End the processes and registrations that can \
                 still write to it, and freeze it again"
            ))),
        }
    }

    /// Makes the error of a frozen buffer that has no copies.
    fn without_copies(&self, why: &dyn std::fmt::Display) -> Error {
        let (name, host) = (self.name(), process::host_name());
        Error::Freeze {
            why: format!(
                "buffer \"{name}\" on {host} is frozen, but its copies could not be made, so all ranks read the original pages: {why}"
            ),
        }
    }

    /// Returns the bytes of a section of the sealed buffer.
    fn frozen_bytes(&self, section: &SectionIdentity) -> &[u8] {
        let start = self.as_ptr().as_ptr().wrapping_add(section.offset as usize);
        // SAFETY: inside the buffer, which is mapped as long as self lives, and sealed against
        // writes.
        unsafe { std::slice::from_raw_parts(start, section.length as usize) }
    }

    /// Maps the copies over the sections. Without files this rank keeps the original pages.
    fn map_copies(&self, sections: &[&SectionIdentity], files: &[OwnedFd]) -> Result<()> {
        let Some(file) = files.first() else { return Ok(()) };
        let mut from = 0;
        for section in sections {
            let at = self.as_ptr().as_ptr() as usize + section.offset as usize;
            // SAFETY: the copy has the same bytes, which was verified, and as no process writes to
            // either file, references remain valid.
            unsafe { self.map_read_only(at, section.length as usize, file.as_raw_fd(), from) }?;
            from += section.length;
        }
        Ok(())
    }

    /// Warns about the ranks of this host that may read from a remote node.
    fn name_remote_readers(&self, ranks: &[RankNode], hosts: &Hosts) {
        let remote = ranks.iter().filter(|rank| rank.host == hosts.index && !rank.is_local);
        let each: Vec<String> =
            remote.map(|rank| format!("rank {} from node {}", rank.rank, rank.node)).collect();
        if !each.is_empty() {
            warn!(
                buffer = %self.name(),
                "some ranks may read from a remote node ({}): bind each rank to the cores of one node, for example with --bind node",
                each.join(", ")
            );
        }
    }
}

/// Returns the nodes that may get copies of a section. The first one has the original pages.
fn nodes(section: &SectionIdentity) -> Vec<NodeId> {
    section.nodes.iter().map(|on| on.node).collect()
}
