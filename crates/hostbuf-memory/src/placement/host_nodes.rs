//! The NUMA nodes of this host, as placing memory needs them.

use hostbuf_os::cores::Cores;
use hostbuf_os::{NodeId, memory, mempolicy, node_memory};
use hostbuf_topology::NumaNode;

use crate::placement::node_space::{NodeMemory, NodeSpace};

/// The nodes that have memory, and their cores.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostNodes {
    nodes: Vec<(NodeId, Cores)>,
    /// The nodes that have no memory of the host.
    without_memory: Vec<NodeId>,
}

impl From<&[NumaNode]> for HostNodes {
    fn from(nodes: &[NumaNode]) -> HostNodes {
        let (with_memory, without): (Vec<_>, Vec<_>) =
            nodes.iter().partition(|node| node.has_memory() || node.is_assumed());
        let described = |node: &NumaNode| (node.id(), Cores::from_numbers(node.cpus().iter()));
        HostNodes {
            nodes: with_memory.into_iter().map(described).collect(),
            without_memory: without.into_iter().map(NumaNode::id).collect(),
        }
    }
}

impl HostNodes {
    /// Makes a description of nodes that have memory, each with its cores.
    #[must_use]
    pub fn new(nodes: Vec<(NodeId, Cores)>) -> HostNodes {
        HostNodes { nodes, without_memory: Vec::new() }
    }

    /// Returns the nodes of this host.
    #[must_use]
    pub fn of_this_host() -> HostNodes {
        HostNodes::of(&NumaNode::all_of_this_host(), mempolicy::allowed_nodes())
    }

    /// Returns `nodes`, with those of the cpuset instead of a node that stands for the whole host,
    /// since the kernel does not show any.
    fn of(nodes: &[NumaNode], allowed: Option<Vec<NodeId>>) -> HostNodes {
        let mut host = HostNodes::from(nodes);
        if let ([assumed], Some(allowed)) = (nodes, allowed)
            && assumed.is_assumed()
        {
            let cores = host.nodes[0].1;
            let others = allowed.into_iter().filter(|node| *node != assumed.id());
            host.nodes.extend(others.map(|node| (node, cores)));
            host.nodes.sort_unstable_by_key(|(node, _)| *node);
        }
        host
    }

    /// Returns the cores of a node that are in `allowed`, the cores that the caller may use. If
    /// there are none, these are all of `allowed`: another node's cores allocate the pages then. If
    /// `allowed` is empty, it is unknown.
    #[must_use]
    pub fn cores(&self, node: NodeId, allowed: &Cores) -> Cores {
        let found = self.nodes.iter().find(|(id, _)| *id == node).map(|(_, cores)| *cores);
        let cores = match allowed.count() {
            0 => found,
            _ => found.map(|cores| cores.intersection(allowed)),
        };
        cores.filter(|cores| cores.count() > 0).unwrap_or(*allowed)
    }

    /// Returns each node with memory that has some of `cores`, with their number there, in
    /// descending order of that number.
    #[must_use]
    pub fn with_cores_of(&self, cores: &Cores) -> Vec<(NodeId, usize)> {
        let count = |(node, all): &(NodeId, Cores)| (*node, all.intersection(cores).count());
        let mut found: Vec<_> = self.nodes.iter().map(count).filter(|(_, count)| *count > 0).collect();
        found.sort_by_key(|&(node, count)| (std::cmp::Reverse(count), node));
        found
    }

    /// Returns whether all memory is on one node, so that the free memory of the host is that of
    /// the node. Some virtual machines get their memory when it is used, and count only for the
    /// host what they will get. Memory of a GPU counts for the host, too.
    fn has_one_memory(&self) -> bool {
        self.nodes.len() == 1 && self.without_memory.is_empty()
    }

    /// Returns the free memory of the nodes now.
    #[must_use]
    pub fn space(&self) -> NodeSpace {
        let allowed = mempolicy::allowed_nodes();
        let of_host = || memory::meminfo("MemAvailable");
        let memory = |&(node, cores): &(NodeId, Cores)| {
            let of_node = || node_memory::available(node);
            let available =
                if self.has_one_memory() { of_host().or_else(of_node) } else { of_node().or_else(of_host) };
            NodeMemory {
                huge_2m: node_memory::free_in_pool(node, 2 << 20),
                huge_1g: node_memory::free_in_pool(node, 1 << 30),
                allowed: allowed.as_ref().is_none_or(|allowed| allowed.contains(&node)),
                has_cores: cores.count() > 0,
                ..NodeMemory::new(node, crate::space::net_of_overhead(available.unwrap_or(0)))
            }
        };
        NodeSpace::new(self.nodes.iter().map(memory).collect()).without_memory(self.without_memory.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hostbuf_topology::Topology;

    /// A container may hide /sys, and its cpuset may have other nodes than the first.
    #[test]
    fn the_nodes_of_the_cpuset_are_those_of_a_host_that_shows_none() {
        let root = std::env::temp_dir().join(format!("hostbuf-no-nodes-{}", std::process::id()));
        std::fs::create_dir_all(root.join("sys/devices/system")).unwrap();
        std::fs::create_dir_all(root.join("proc")).unwrap();
        std::fs::write(root.join("proc/stat"), "cpu 1\ncpu0 1\n").unwrap();
        let topology = Topology::recorded(&root);
        std::fs::remove_dir_all(&root).unwrap();
        let nodes = |allowed| {
            let host = HostNodes::of(topology.as_ref().unwrap().nodes(), allowed);
            host.nodes.iter().map(|(node, _)| node.0).collect::<Vec<_>>()
        };
        assert_eq!(nodes(Some(vec![NodeId(1), NodeId(3)])), [0, 1, 3]);
        assert_eq!((nodes(Some(vec![NodeId(0)])), nodes(None)), (vec![0], vec![0]));
    }

    #[test]
    fn memory_of_a_gpu_beside_that_of_the_host_is_another_memory() {
        let one = HostNodes::new(vec![(NodeId(0), Cores::from_numbers([0]))]);
        assert!(one.has_one_memory());
        assert!(!HostNodes { without_memory: vec![NodeId(1)], ..one.clone() }.has_one_memory());
        let two = one.nodes.iter().copied().chain([(NodeId(1), Cores::from_numbers([1]))]).collect();
        assert!(!HostNodes::new(two).has_one_memory());
    }

    #[test]
    fn the_cores_of_a_node_are_those_of_the_affinity() {
        let of = |numbers: &[usize]| Cores::from_numbers(numbers.iter().copied());
        let nodes =
            HostNodes::new(vec![(NodeId(0), of(&[0, 1])), (NodeId(1), of(&[2, 3])), (NodeId(2), of(&[]))]);
        assert_eq!(nodes.cores(NodeId(0), &of(&[1, 2])), of(&[1]));
        assert_eq!(nodes.cores(NodeId(1), &of(&[])), of(&[2, 3]));
        assert_eq!(nodes.with_cores_of(&of(&[0, 2, 3, 9])), [(NodeId(1), 2), (NodeId(0), 1)]);
        assert_eq!(nodes.with_cores_of(&of(&[9])), []);
        // No core of these nodes may be used.
        assert_eq!(nodes.cores(NodeId(1), &of(&[0])), of(&[0]));
        assert_eq!(nodes.cores(NodeId(2), &of(&[0, 3])), of(&[0, 3]));
    }
}
