//! The free memory of each NUMA node, from which plans are made.

use hostbuf_os::{Bytes, NodeId, process};

use crate::error::{Error, NoSpace, Result};
use crate::pages::Pages;
use crate::placement::node_shortage::NodeShortage;
use crate::placement::plan::NodePattern;
use crate::placement::request::Placement;
use crate::placement::{MAX_NODES, name_nodes};

/// The free memory of one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodeMemory {
    /// The node.
    pub node: NodeId,
    /// The number of bytes of ordinary pages that can be allocated on the node.
    pub ordinary: u64,
    /// The number of free bytes in the node's pool of pages of 2 MiB.
    pub huge_2m: u64,
    /// The number of free bytes in the node's pool of pages of 1 GiB.
    pub huge_1g: u64,
    /// True if the cpuset of this process contains the node.
    pub allowed: bool,
    /// True if the node has cores.
    pub has_cores: bool,
}

impl NodeMemory {
    /// Describes a node with `ordinary` bytes for ordinary pages, without pools.
    #[must_use]
    pub fn new(node: NodeId, ordinary: u64) -> NodeMemory {
        NodeMemory { node, ordinary, huge_2m: 0, huge_1g: 0, allowed: true, has_cores: true }
    }

    /// Returns the free bytes for this kind of pages.
    fn free(&self, pages: Pages) -> u64 {
        match pages {
            Pages::Huge2M => self.huge_2m,
            Pages::Huge1G => self.huge_1g,
            _ => self.ordinary,
        }
    }

    /// Takes bytes out of the free ones.
    fn take(&mut self, pages: Pages, bytes: u64) {
        *match pages {
            Pages::Huge2M => &mut self.huge_2m,
            Pages::Huge1G => &mut self.huge_1g,
            _ => &mut self.ordinary,
        } -= bytes;
    }
}

/// The free memory of all nodes of a host. A plan takes its bytes out of it, so that the next plan
/// finds what is left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeSpace {
    nodes: Vec<NodeMemory>,
    /// The nodes that have no memory of the host.
    without_memory: Vec<NodeId>,
    /// The number of bytes of all plans.
    planned: u64,
}

impl NodeSpace {
    /// Describes a host with these nodes.
    #[must_use]
    pub fn new(nodes: Vec<NodeMemory>) -> NodeSpace {
        NodeSpace { nodes, without_memory: Vec::new(), planned: 0 }
    }

    /// Sets the nodes that exist but have no memory of the host, for messages.
    #[must_use]
    pub fn without_memory(mut self, nodes: Vec<NodeId>) -> NodeSpace {
        self.without_memory = nodes;
        self
    }

    /// Plans a range of `length` bytes on `pages`, which are not [`Pages::Auto`], and takes its
    /// bytes out of the free memory. `part` is the name of the range in messages, or empty.
    ///
    /// # Errors
    /// [`Error::Placement`] for a node that this host does not have, that has no memory, or that
    /// the cpuset of this process excludes; [`Error::NoSpace`] if a node has too little free
    /// memory. Nothing is taken then.
    pub(crate) fn plan(
        &mut self,
        part: &str,
        placement: &Placement,
        length: u64,
        pages: Pages,
    ) -> Result<NodePattern> {
        self.check(placement)?;
        placement.nodes().iter().try_for_each(|&node| self.check_node(part, node))?;
        let count = length.div_ceil(pages.size());
        let pattern = match placement {
            Placement::Node(node) => NodePattern::Blocks(vec![(*node, count)]),
            Placement::Nodes(nodes) => NodePattern::Blocks(self.blocks(nodes, count, pages)),
            Placement::Interleave(interleave) => NodePattern::Turn(interleave.turn(&self.usable())),
            Placement::Copies => NodePattern::Copies(self.with_cores()),
        };
        let needs = pattern.needs(count);
        let is_short = |&(node, count): &(NodeId, u64)| count * pages.size() > self.free_on(node, pages);
        if needs.iter().any(is_short) {
            let of_placement: Vec<NodeId> = match placement {
                Placement::Interleave(_) | Placement::Copies => needs.iter().map(|(node, _)| *node).collect(),
                other => other.nodes().to_vec(),
            };
            let free = |node: NodeId| (node, self.free_on(node, pages) / pages.size());
            let free = of_placement.into_iter().map(free).collect();
            let shortage = NodeShortage { part, placement, pages, count, pattern: &pattern, free };
            return Err(shortage.error(&self.each_free(pages)));
        }
        for (node, count) in needs {
            let memory = self.nodes.iter_mut().find(|n| n.node == node).expect("it has free memory");
            memory.take(pages, count * pages.size());
            self.planned += count * pages.size();
        }
        Ok(pattern)
    }

    /// Checks that `unplaced` bytes on `pages` fit into the memory that plans of `placed` bytes
    /// have left on the nodes of this process. `before` is the free memory before these plans.
    ///
    /// # Errors
    /// [`Error::NoSpace`].
    pub(crate) fn check_unplaced(
        &self,
        before: &NodeSpace,
        placed: u64,
        unplaced: u64,
        pages: Pages,
    ) -> Result<()> {
        let left: u64 = self.nodes.iter().filter(|n| n.allowed).map(|n| n.free(pages)).sum();
        if unplaced <= left {
            return Ok(());
        }
        let (memory, remedy) = match pages {
            Pages::Huge2M | Pages::Huge1G => (
                format!("the reserved pools of pages of {}", Bytes(pages.size())),
                "reserve more pages, request less, or use --pages auto",
            ),
            _ => ("the free memory".into(), "request less, or end other programs on this host"),
        };
        Err(Error::NoSpace(NoSpace {
            host: process::host_name(),
            requested: placed.saturating_add(unplaced),
            available: placed.saturating_add(left),
            limit: format!(
                "{memory} of the NUMA nodes for {} with a placement and {} without one ({})",
                Bytes(placed),
                Bytes(unplaced),
                before.each_free(pages)
            ),
            remedy: remedy.into(),
        }))
    }

    /// Distributes `count` pages over `nodes`: as many as are free on each, in order. The last node
    /// gets the rest.
    fn blocks(&self, nodes: &[NodeId], count: u64, pages: Pages) -> Vec<(NodeId, u64)> {
        let mut rest = count;
        let mut blocks = Vec::new();
        for (i, &node) in nodes.iter().enumerate() {
            let free = self.free_on(node, pages) / pages.size();
            let take = if i + 1 == nodes.len() { rest } else { rest.min(free) };
            rest -= take;
            if take > 0 {
                blocks.push((node, take));
            }
        }
        blocks
    }

    /// Checks that a placement names some nodes, and none twice.
    fn check(&self, placement: &Placement) -> Result<()> {
        let all = match placement {
            Placement::Interleave(interleave) if interleave.nodes().is_empty() => &self.usable()[..],
            Placement::Copies => &self.with_cores()[..],
            other => other.nodes(),
        };
        let twice = all.iter().enumerate().find(|(i, node)| all[..*i].contains(node));
        if let Some((_, node)) = twice {
            return Err(Error::Invalid {
                what: format!("invalid placement \"{placement}\": node {node} occurs twice"),
            });
        }
        if (1..=MAX_NODES).contains(&all.len()) {
            return Ok(());
        }
        let (host, count) = (process::host_name(), all.len());
        let why = if placement.nodes().is_empty() && count > 0 {
            format!(
                "the cpuset of this process on {host} has {count} NUMA nodes, and a placement has at most {MAX_NODES}: name the nodes"
            )
        } else {
            format!("it has {count} NUMA nodes on {host}: name 1 to {MAX_NODES} nodes")
        };
        Err(Error::Placement { action: format!("use the placement \"{placement}\""), why })
    }

    fn check_node(&self, part: &str, node: NodeId) -> Result<()> {
        let host = process::host_name();
        let why = match self.nodes.iter().find(|n| n.node == node) {
            Some(found) if found.allowed => return Ok(()),
            Some(_) => format!(
                "the cpuset of this process on {host} allows only {}: name an allowed node, or change the cpuset",
                name_nodes(self.usable())
            ),
            None if self.without_memory.contains(&node) => format!(
                "this node of {host} has no memory, or only the memory of a GPU: name a node with memory of the host ({})",
                name_nodes(self.nodes.iter().map(|n| n.node))
            ),
            None => {
                let mut all: Vec<NodeId> = self.nodes.iter().map(|n| n.node).collect();
                all.extend(&self.without_memory);
                all.sort_unstable();
                format!(
                    "{host} has only {}: name one of its nodes (`hostbuf topology` lists them)",
                    name_nodes(all)
                )
            }
        };
        let part = if part.is_empty() { "memory" } else { part };
        Err(Error::Placement { action: format!("place {part} on node {node}"), why })
    }

    /// Returns the nodes from which this process may take memory.
    fn usable(&self) -> Vec<NodeId> {
        self.nodes.iter().filter(|n| n.allowed).map(|n| n.node).collect()
    }

    /// Returns those of the usable nodes that have cores, or all of them if none has any.
    fn with_cores(&self) -> Vec<NodeId> {
        let has_cores = |node: &NodeId| self.nodes.iter().any(|n| n.node == *node && n.has_cores);
        let (with, without): (Vec<NodeId>, Vec<NodeId>) = self.usable().into_iter().partition(has_cores);
        if with.is_empty() { without } else { with }
    }

    /// Returns the free bytes of a node, 0 for one that this host does not have.
    fn free_on(&self, node: NodeId, pages: Pages) -> u64 {
        self.nodes.iter().find(|n| n.node == node).map_or(0, |n| n.free(pages))
    }

    /// Formats the free bytes of the nodes of this process: `free: node 0 2 GiB, node 1 1 GiB`.
    fn each_free(&self, pages: Pages) -> String {
        let allowed = self.nodes.iter().filter(|n| n.allowed);
        let each: Vec<String> =
            allowed.map(|n| format!("node {} {}", n.node, Bytes(n.free(pages)))).collect();
        let beside = match self.planned {
            0 => String::new(),
            bytes => format!(" beside {} with other placements", Bytes(bytes)),
        };
        format!("free{beside}: {}", each.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn space() -> NodeSpace {
        let node = |node, mib: u64, pool: u64| NodeMemory {
            huge_2m: pool * MIB,
            ..NodeMemory::new(NodeId(node), mib * MIB)
        };
        let excluded = NodeMemory { allowed: false, ..node(2, 50, 0) };
        NodeSpace::new(vec![node(0, 100, 8), node(1, 20, 2), excluded]).without_memory(vec![NodeId(3)])
    }

    fn plan(space: &mut NodeSpace, placement: &str, mib: u64, pages: Pages) -> Result<Vec<(u32, u64)>> {
        let pattern = space.plan("", &placement.parse().unwrap(), mib * MIB, pages)?;
        let counts = pattern.counts((mib * MIB).div_ceil(pages.size()));
        Ok(counts.into_iter().map(|(node, count)| (node.0, count * pages.size() / MIB)).collect())
    }

    #[test]
    fn plans_take_their_bytes_from_the_nodes() {
        let mut space = space();
        assert_eq!(plan(&mut space, "1", 16, Pages::Small).unwrap(), [(1, 16)]);
        assert_eq!(plan(&mut space, "1,0", 10, Pages::Small).unwrap(), [(1, 4), (0, 6)]);
        assert_eq!(plan(&mut space, "0,1", 94, Pages::Small).unwrap(), [(0, 94)]);
        assert!(plan(&mut space, "0,1", 1, Pages::Small).is_err());
        // A pool is another memory.
        assert_eq!(plan(&mut space, "interleave:0,1/3,1", 8, Pages::Huge2M).unwrap(), [(0, 6), (1, 2)]);
    }

    #[test]
    fn interleaving_without_nodes_uses_those_of_the_cpuset() {
        assert_eq!(plan(&mut space(), "interleave", 8, Pages::Small).unwrap(), [(0, 4), (1, 4)]);
    }

    /// Only the nodes with cores get copies, and each must have the memory.
    #[test]
    fn copies_take_the_memory_of_each_node_with_cores() {
        let mut space = space();
        space.nodes.push(NodeMemory { has_cores: false, ..NodeMemory::new(NodeId(4), 2 * MIB) });
        let mut plan = |mib| space.plan("", &Placement::Copies, mib * MIB, Pages::Small);
        assert_eq!(plan(12).unwrap(), NodePattern::Copies(vec![NodeId(0), NodeId(1)]));
        let error = plan(10).unwrap_err().to_string();
        for words in [
            "10 MiB requested, 8 MiB available",
            "the free memory of node 1 for the placement copies",
            "(free beside 24 MiB with other placements: node 0 88 MiB, node 1 8 MiB, node 4 2 MiB)",
            "end other programs on node 1",
        ] {
            assert!(error.contains(words), "{words}: {error}");
        }
        assert_eq!(plan(8).unwrap().counts(2048), [(NodeId(0), 2048)]);
    }

    #[test]
    fn placements_without_nodes_or_with_one_twice_are_refused() {
        let refuse =
            |space: &mut NodeSpace, placement| space.plan("", &placement, MIB, Pages::Small).unwrap_err();
        let nodes = |list: &[u32]| Placement::Nodes(list.iter().copied().map(NodeId).collect());
        assert!(matches!(refuse(&mut space(), nodes(&[])), Error::Placement { .. }));
        assert!(matches!(refuse(&mut space(), nodes(&[0, 0])), Error::Invalid { .. }));
        let interleave = || Placement::Interleave(crate::placement::Interleave::over_all());
        assert!(matches!(refuse(&mut NodeSpace::new(vec![]), interleave()), Error::Placement { .. }));
        let many = (0..65).map(|node| NodeMemory::new(NodeId(node), MIB)).collect();
        assert!(matches!(refuse(&mut NodeSpace::new(many), interleave()), Error::Placement { .. }));
    }

    #[test]
    fn errors_state_the_request_the_free_memory_of_each_node_and_the_remedy() {
        let refuse = |placement: &str, mib, pages| {
            let mut used = space();
            let error = plan(&mut used, placement, mib, pages).unwrap_err().to_string();
            assert_eq!(used, space(), "a failed plan takes nothing");
            error
        };
        let full = refuse("1", 21, Pages::Transparent);
        for words in [
            "22 MiB requested, 20 MiB available",
            "the free memory of node 1",
            "node 0 100 MiB, node 1 20 MiB",
            "request at most 20 MiB",
        ] {
            assert!(full.contains(words), "{words}: {full}");
        }
        let pool = refuse("interleave", 8, Pages::Huge2M);
        for words in [
            "8 MiB requested, 6 MiB available",
            "request at most 6 MiB",
            "node 0 8 MiB, node 1 2 MiB",
            "nr_hugepages by 1)",
            "node1/hugepages",
        ] {
            assert!(pool.contains(words), "{words}: {pool}");
        }
        let both = refuse("0,1", 121, Pages::Small);
        assert!(both.contains("121 MiB requested, 120 MiB available"), "{both}");
        assert!(both.contains("the free memory of nodes 0 and 1 for"), "{both}");
        let mut used = space();
        plan(&mut used, "0", 90, Pages::Small).unwrap();
        let error = used.plan("section \"b\"", &"interleave".parse().unwrap(), 40 * MIB, Pages::Small);
        let error = error.unwrap_err().to_string();
        for words in [
            "40 MiB requested, 20 MiB available",
            "of node 0 for section \"b\" with the placement interleave",
            "(free beside 90 MiB with other placements: node 0 10 MiB, node 1 20 MiB)",
        ] {
            assert!(error.contains(words), "{words}: {error}");
        }
        let absent = refuse("0,7", 1, Pages::Small);
        assert!(
            absent.contains("cannot place memory on node 7: ")
                && absent.contains("has only nodes 0, 1, 2 and 3: "),
            "{absent}"
        );
        let excluded = refuse("2", 1, Pages::Small);
        let empty = refuse("3", 1, Pages::Small);
        let words = "name a node with memory of the host (nodes 0, 1 and 2)";
        assert!(empty.contains("node 3: this node of ") && empty.contains(words), "{empty}");
        assert!(
            excluded.contains("cpuset") && excluded.contains("allows only nodes 0 and 1: "),
            "{excluded}"
        );
    }
}
