//! Nodes that are the memory of a GPU.

use crate::cpu_set::CpuSet;
use crate::numa_node::{NodeId, NumaNode};
use crate::pci_address::PciAddress;
use crate::read_gpus::{FUNCTIONS, NVIDIA_GPUS, is_nvidia_gpu};
use crate::read_nodes::{is_node_of_cpus, memory_is_described};
use crate::tree::TreeReader;

/// The nodes of devices that access memory by themselves, such as GPUs (ACPI SRAT).
const INITIATORS: &str = "sys/devices/system/node/has_generic_initiator";

/// The memory devices of CXL and of persistent memory.
const MEMORY_DEVICES: &str = "sys/bus/dax/devices";

/// Marks the nodes that are the memory of a GPU. NVIDIA's driver shows them in `/proc`. A container
/// may hide the folders of the GPUs that it is not given. The nodes of these are then assumed:
/// memory of a GPU that is taken for the host's is lost for the programs on the GPU.
pub(crate) fn mark_gpu_memory(reader: &TreeReader, nodes: &mut [NumaNode]) {
    let shown = shown_nodes(reader);
    for node in &mut *nodes {
        node.gpu = shown.iter().find(|(id, _)| *id == node.id).map(|(_, address)| *address);
    }
    let has_no_cpus = |at: &usize| is_without_cpus(reader, &nodes[*at]);
    let candidates: Vec<usize> = (0..nodes.len()).filter(has_no_cpus).collect();
    if candidates.is_empty() {
        return;
    }
    let hidden = hidden_gpus(reader);
    let initiators: CpuSet = reader.value(INITIATORS).unwrap_or_default();
    let is_initiator = |at: &usize| initiators.contains(nodes[*at].id.0 as usize);
    let (of_initiators, mut others): (Vec<usize>, Vec<usize>) =
        candidates.into_iter().partition(is_initiator);
    others.retain(|&at| is_unexplained(reader, nodes[at].id));
    // Kernels before 5.10 and firmware without ACPI do not list initiators. The numbers must agree
    // then, since memory of the host may have no CPUs either.
    let matches = of_initiators.is_empty() && others.len() == hidden;
    let assumed = if matches { others } else { of_initiators };
    for at in assumed.into_iter().filter(|_| hidden > 0) {
        nodes[at].gpu_assumed = true;
    }
}

/// Returns the nodes that NVIDIA's driver shows as the memory of a GPU.
fn shown_nodes(reader: &TreeReader) -> Vec<(NodeId, PciAddress)> {
    let node = |name: String| {
        let status = reader.text(&format!("{NVIDIA_GPUS}/{name}/numa_status"))?;
        let id = status.lines().find_map(|line| line.strip_prefix("Node:"))?.trim().parse().ok()?;
        Some((NodeId(id), name.parse().ok()?))
    };
    reader.names(NVIDIA_GPUS).into_iter().filter_map(node).collect()
}

/// Returns true for a node with memory and without CPUs, which no driver shows as that of a GPU.
fn is_without_cpus(reader: &TreeReader, node: &NumaNode) -> bool {
    let has_memory = node.memory.is_some_and(|bytes| bytes > 0);
    has_memory && node.gpu.is_none() && !node.has_cpus() && !is_node_of_cpus(reader, node.id)
}

/// Returns true if neither a memory device nor the firmware describes the memory of a node.
fn is_unexplained(reader: &TreeReader, id: NodeId) -> bool {
    let target = |name: &String| reader.value(&format!("{MEMORY_DEVICES}/{name}/target_node"));
    let is_of_device = reader.names(MEMORY_DEVICES).iter().filter_map(target).any(|node: u32| node == id.0);
    !is_of_device && !memory_is_described(reader, id)
}

/// Returns the number of GPUs that NVIDIA's driver drives, and whose folder in `/proc` is hidden.
fn hidden_gpus(reader: &TreeReader) -> usize {
    let is_driven = |name: &String| {
        let driver = reader.resolve(&format!("{FUNCTIONS}/{name}/driver"));
        driver.is_some_and(|driver| driver.ends_with("/nvidia")) && is_nvidia_gpu(reader, name)
    };
    let is_hidden = |name: &String| !reader.exists(&format!("{NVIDIA_GPUS}/{name}"));
    reader.names(FUNCTIONS).iter().filter(|name| is_hidden(name) && is_driven(name)).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::discovery::recorded_tree;
    use crate::memory_tree::MemoryTree;

    /// Returns two hosts in one, each with a node of CPUs and a GPU that its driver drives, and two
    /// nodes without CPUs.
    fn grace() -> MemoryTree {
        let mut tree = MemoryTree::new().file("sys/devices/system/cpu/online", "0-3\n");
        for (node, cpus, size) in [(0, "0-1", 4), (1, "2-3", 4), (2, "", 2), (3, "", 0), (10, "", 2)] {
            let folder = format!("sys/devices/system/node/node{node}");
            tree = tree
                .file(&format!("{folder}/cpulist"), cpus)
                .file(&format!("{folder}/meminfo"), &format!("Node {node} MemTotal: {size} kB\n"));
        }
        for domain in ["0009", "0019"] {
            let below = format!("devices/pci{domain}:00/{domain}:00:00.0/{domain}:01:00.0");
            tree = tree
                .file(&format!("sys/{below}/class"), "0x030200\n")
                .file(&format!("sys/{below}/vendor"), "0x10de\n")
                .link(&format!("sys/{below}/driver"), "/sys/bus/pci/drivers/nvidia")
                .link(&format!("sys/bus/pci/devices/{domain}:01:00.0"), &format!("../../../{below}"));
        }
        tree.file("sys/bus/pci/drivers/nvidia/bind", "")
    }

    /// Returns the nodes that are the memory of a GPU, such as `2=0009:01:00.0 10?`.
    fn gpu_nodes(tree: &MemoryTree) -> String {
        let of_gpu = |node: &NumaNode| {
            let has_bytes = node.memory().is_some_and(|bytes| bytes > 0);
            assert_eq!(node.has_memory(), has_bytes && !node.is_gpu_memory());
            assert!(!node.gpu_assumed || node.gpu.is_none());
            let gpu = node.gpu().map_or("?".to_owned(), |gpu| format!("={gpu}"));
            node.is_gpu_memory().then(|| format!("{}{gpu}", node.id()))
        };
        recorded_tree(tree).nodes().iter().filter_map(of_gpu).collect::<Vec<_>>().join(" ")
    }

    fn shown(tree: MemoryTree, gpu: &str, node: u32) -> MemoryTree {
        tree.file(&format!("proc/driver/nvidia/gpus/{gpu}/numa_status"), &format!("Node: {node}\n"))
    }

    #[test]
    fn the_driver_shows_the_nodes_of_gpus() {
        let both = shown(shown(grace(), "0009:01:00.0", 2), "0019:01:00.0", 10);
        assert_eq!(gpu_nodes(&both), "2=0009:01:00.0 10=0019:01:00.0");
        assert!(recorded_tree(&both).assumptions().iter().all(|found| found.subject() != "node 2"));
        // A driver that is shown and states no node has none.
        let none = grace()
            .file("proc/driver/nvidia/gpus/0009:01:00.0/information", "")
            .file("proc/driver/nvidia/gpus/0019:01:00.0/information", "");
        assert_eq!(gpu_nodes(&none), "");
    }

    #[test]
    fn nodes_of_gpus_that_a_container_hides_are_assumed() {
        assert_eq!(gpu_nodes(&grace()), "2? 10?");
        let initiators = || grace().file("sys/devices/system/node/has_generic_initiator", "2-3,10\n");
        assert_eq!(gpu_nodes(&initiators()), "2? 10?");
        // The firmware describes memory that only its GPU is next to.
        let described = initiators()
            .link("sys/devices/system/node/node2/access0/initiators/node2", "../../../node2")
            .file("sys/devices/system/node/node2/access0/initiators/read_bandwidth", "4000\n");
        assert_eq!(gpu_nodes(&described), "2? 10?");
        // The container has one of the GPUs.
        assert_eq!(gpu_nodes(&shown(initiators(), "0009:01:00.0", 2)), "2=0009:01:00.0 10?");
        assert_eq!(gpu_nodes(&shown(grace(), "0019:01:00.0", 10)), "2? 10=0019:01:00.0");
        let topology = recorded_tree(&grace());
        let found: Vec<String> = topology.assumptions().iter().map(ToString::to_string).collect();
        assert!(
            found.iter().any(|line| line.starts_with("node 2, node 10: ")
                && line.contains("assumed to be the memory of a GPU")
                && line.contains("/proc/driver/nvidia")),
            "{found:?}"
        );
    }

    #[test]
    fn memory_of_the_host_without_cpus_stays_the_hosts() {
        let initiators = || grace().file("sys/devices/system/node/has_generic_initiator", "10\n");
        assert_eq!(gpu_nodes(&initiators()), "10?");
        // CXL or persistent memory, memory that the firmware describes, and CPUs that are offline.
        for explained in [
            grace().file("sys/bus/dax/devices/dax0.0/target_node", "2\n"),
            grace()
                .folder("sys/devices/system/node/node2/access0/initiators")
                .link("sys/devices/system/node/node2/access0/initiators/node0", "../../../node0"),
            grace().link("sys/devices/system/node/node2/cpu7", "../../cpu/cpu7"),
        ] {
            assert_eq!(gpu_nodes(&explained), "");
        }
        // No GPU, or one that another driver has.
        let mut no_gpu = MemoryTree::new();
        for node in [0, 2] {
            no_gpu = no_gpu.file(
                &format!("sys/devices/system/node/node{node}/meminfo"),
                &format!("Node {node} MemTotal: 4 kB\n"),
            );
        }
        assert_eq!(gpu_nodes(&no_gpu), "");
        let other_driver = grace()
            .link("sys/devices/pci0009:00/0009:00:00.0/0009:01:00.0/driver", "/sys/bus/pci/drivers/vfio-pci")
            .link("sys/devices/pci0019:00/0019:00:00.0/0019:01:00.0/driver", "/sys/bus/pci/drivers/vfio-pci")
            .file("sys/bus/pci/drivers/vfio-pci/bind", "");
        assert_eq!(gpu_nodes(&other_driver), "");
    }
}
