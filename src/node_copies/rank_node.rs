//! The NUMA nodes from which the ranks read sections with copies.

use hostbuf_memory::placement::HostNodes;
use hostbuf_os::NodeId;
use hostbuf_os::cores::Cores;

use crate::error::{Error, Result};
use crate::job::{Collective, HostIndex, Hosts};

/// The NUMA node from whose memory a rank reads the sections with `numa=copies`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RankNode {
    /// The rank in the group that froze the buffer.
    pub rank: usize,
    /// The host of the rank.
    pub host: HostIndex,
    /// The node.
    pub node: NodeId,
    /// True if the node has all cores on which the rank may run, so that all its reads are local.
    pub is_local: bool,
}

/// The NUMA node from whose memory this process reads the sections with `numa=copies` of a frozen
/// buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReadNode {
    /// The node.
    pub node: NodeId,
    /// True if the node had all cores on which this process could run when it froze the buffer.
    pub is_local: bool,
}

impl ReadNode {
    /// The length of an encoded node in bytes.
    const LENGTH: usize = 8;

    /// Selects the node of `copied` that has most of `cores`, or the first node of `copied` if none
    /// has any.
    ///
    /// # Panics
    /// If `copied` is empty.
    pub(super) fn select(host: &HostNodes, cores: &Cores, copied: &[NodeId]) -> ReadNode {
        let nodes = host.with_cores_of(cores);
        let found = nodes.iter().find(|(node, _)| copied.contains(node));
        let (node, count) = found.copied().unwrap_or((copied[0], 0));
        // Nodes that stand for unknown ones have the same cores.
        ReadNode { node, is_local: nodes.len() == 1 && count == cores.count() }
    }

    /// Returns the nodes of all ranks of `group`. Collective.
    ///
    /// # Errors
    /// [`Error::Collective`].
    pub(super) fn gather(self, group: &dyn Collective, hosts: &Hosts) -> Result<Vec<RankNode>> {
        let words = [self.node.0, u32::from(self.is_local)];
        let mine: Vec<u8> = words.into_iter().flat_map(u32::to_ne_bytes).collect();
        let mut all = vec![0; ReadNode::LENGTH * group.size()];
        group.all_gather(&mine, &mut all)?;
        let word = |bytes: &[u8]| bytes.try_into().map(u32::from_ne_bytes);
        let each = all.chunks_exact(ReadNode::LENGTH).zip(&hosts.host_of).enumerate();
        let decode = |(rank, (bytes, &host)): (usize, (&[u8], &HostIndex))| {
            let (node, is_local) = bytes.split_at(4);
            Ok(RankNode { rank, host, node: NodeId(word(node)?), is_local: word(is_local)? != 0 })
        };
        let decoded: std::result::Result<Vec<_>, std::array::TryFromSliceError> = each.map(decode).collect();
        decoded.map_err(|e| Error::Collective { operation: "all_gather", why: e.to_string() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::Solo;

    #[test]
    fn a_rank_reads_from_the_node_of_most_of_its_cores() {
        let of = |numbers: &[usize]| Cores::from_numbers(numbers.iter().copied());
        let nodes = [(0, &[0, 1][..]), (1, &[2, 3]), (2, &[4])];
        let host = HostNodes::new(nodes.map(|(node, cores)| (NodeId(node), of(cores))).to_vec());
        let select = |cores: &[usize]| {
            let ReadNode { node, is_local } = ReadNode::select(&host, &of(cores), &[NodeId(0), NodeId(1)]);
            (node.0, is_local)
        };
        assert_eq!(select(&[2, 3]), (1, true));
        assert_eq!(select(&[3]), (1, true));
        assert_eq!(select(&[1, 2, 3]), (1, false));
        assert_eq!(select(&[0, 2]), (0, false));
        // Cores of a node without a copy, alone and beside another; an unknown core; no core.
        assert_eq!(select(&[4]), (0, false));
        assert_eq!(select(&[4, 3]), (1, false));
        assert_eq!(select(&[9]), (0, false));
        assert_eq!(select(&[]), (0, false));
    }

    #[test]
    fn all_ranks_know_the_nodes_of_all() {
        let hosts = Hosts::new(&Solo).unwrap();
        let node = ReadNode { node: NodeId(3), is_local: true };
        let expected = RankNode { rank: 0, host: HostIndex(0), node: NodeId(3), is_local: true };
        assert_eq!(node.gather(&Solo, &hosts).unwrap(), [expected]);
    }
}
