//! The CPUs and nodes of a host that this process may use.

use hostbuf_memory::placement::name_nodes;
use hostbuf_topology::{CpuSet, NodeId, NumaNode, Topology};

/// The CPUs and the nodes that the cpuset and the affinity of this process allow.
#[derive(Clone, Debug)]
pub(crate) struct Restriction {
    pub(crate) cpus: CpuSet,
    pub(crate) nodes: Vec<NodeId>,
    /// True if the process may use all of them.
    pub(crate) is_none: bool,
}

impl Restriction {
    /// Returns the restriction of the calling thread, whose children inherit it.
    pub(crate) fn of_this_process(topology: &Topology) -> Restriction {
        Restriction::new(
            topology,
            CpuSet::of_this_thread(),
            &hostbuf_os::mempolicy::allowed_nodes().unwrap_or_default(),
        )
    }

    /// Returns the restriction to `cpus` and to those of `allowed` that the host has.
    fn new(topology: &Topology, cpus: CpuSet, allowed: &[NodeId]) -> Restriction {
        let with_memory = topology.nodes().iter().filter(|node| node.has_memory()).map(NumaNode::id);
        let (nodes, forbidden): (Vec<NodeId>, Vec<NodeId>) = with_memory.partition(|id| allowed.contains(id));
        let is_none = forbidden.is_empty() && topology.cpus().is_subset(&cpus);
        Restriction { cpus, nodes, is_none }
    }

    /// Returns the clause for users.
    pub(crate) fn text(&self) -> String {
        let nodes = name_nodes(self.nodes.iter().copied());
        format!("this process may run on CPUs {} and take memory of {nodes}", self.cpus)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_without_a_cpu_or_a_node_of_the_host_is_restricted() {
        let topology = Topology::discover_without_nvml();
        let nodes: Vec<NodeId> = topology.nodes().iter().map(NumaNode::id).collect();
        let all = Restriction::new(&topology, topology.cpus(), &nodes);
        assert!(all.is_none && all.text().contains(&format!("CPUs {} and", topology.cpus())), "{all:?}");
        assert!(!Restriction::new(&topology, CpuSet::new(), &nodes).is_none);
        let none = Restriction::new(&topology, topology.cpus(), &[]);
        assert!(!none.is_none && none.text().ends_with("take memory of no node"), "{none:?}");
    }
}
