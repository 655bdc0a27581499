//! Reads the NUMA nodes of a tree.

use hostbuf_os::node_memory;

use crate::cpu_set::CpuSet;
use crate::numa_node::{MemoryPerformance, NodeHugePages, NodeId, NumaNode};
use crate::tree::TreeReader;

pub(crate) const NODES: &str = "sys/devices/system/node";
const CPUS: &str = "sys/devices/system/cpu";

/// The number of nodes that are read. The kernel's limit is 1024.
const NODE_LIMIT: usize = 1024;

/// Returns the online CPUs, or `None` if the tree does not show them.
pub(crate) fn online_cpus(reader: &TreeReader) -> Option<CpuSet> {
    if let Some(online) = reader.value::<CpuSet>(&format!("{CPUS}/online")) {
        return Some(online).filter(|online| !online.is_empty());
    }
    let names = reader.names(CPUS);
    let numbers = names.iter().filter_map(|name| number(name, "cpu"));
    // A CPU that cannot be taken offline has no such file.
    let online = |cpu: &u32| reader.text(&format!("{CPUS}/cpu{cpu}/online")).is_none_or(|text| text != "0");
    let mut cpus: CpuSet = numbers.filter(online).map(|cpu| cpu as usize).collect();
    if cpus.is_empty() {
        // A container may hide all of /sys.
        let stat = reader.text("proc/stat").unwrap_or_default();
        let names = stat.lines().filter_map(|line| line.split(' ').next());
        cpus = names.filter_map(|name| number(name, "cpu")).map(|cpu| cpu as usize).collect();
    }
    Some(cpus).filter(|cpus| !cpus.is_empty())
}

/// The parts of nodes that are read.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum NodeParts {
    All,
    /// Neither pools of huge pages, nor the available memory and its performance.
    CpusAndMemory,
}

/// Returns the nodes in the order of their numbers. Without any in the tree one node stands for the
/// whole host. Nodes that are the memory of a GPU are not marked yet.
pub(crate) fn nodes(reader: &TreeReader, parts: NodeParts) -> Vec<NumaNode> {
    let online = online_cpus(reader);
    let ids = node_ids(reader);
    if ids.is_empty() {
        return vec![whole_host(reader, online.unwrap_or_default())];
    }
    let mut nodes: Vec<NumaNode> = ids.iter().map(|&id| node(reader, id, &ids, online.as_ref())).collect();
    if parts == NodeParts::All {
        nodes.iter_mut().for_each(|node| add_pools_and_performance(reader, node, &ids));
        add_available(reader, &mut nodes);
    }
    nodes
}

/// Returns the numbers of the nodes, in their order.
pub(crate) fn node_ids(reader: &TreeReader) -> Vec<NodeId> {
    let mut ids: Vec<NodeId> =
        reader.names(NODES).iter().filter_map(|name| number(name, "node")).map(NodeId).collect();
    ids.sort_unstable();
    ids.dedup();
    ids.truncate(NODE_LIMIT);
    ids
}

fn node(reader: &TreeReader, id: NodeId, ids: &[NodeId], online: Option<&CpuSet>) -> NumaNode {
    let folder = format!("{NODES}/node{id}");
    let meminfo = reader.text(&format!("{folder}/meminfo")).unwrap_or_default();
    let list = reader.value::<CpuSet>(&format!("{folder}/cpulist"));
    let mask = || reader.text(&format!("{folder}/cpumap")).and_then(|mask| CpuSet::from_mask(&mask).ok());
    let cpus = list.or_else(mask).unwrap_or_default();
    NumaNode {
        id,
        cpus: online.map_or(cpus.clone(), |online| cpus.intersection(online)),
        memory: memory_line(&meminfo, "MemTotal:"),
        free: memory_line(&meminfo, "MemFree:"),
        available: None,
        distances: distances(reader, &folder, ids),
        huge_pages: Vec::new(),
        performance: None,
        gpu: None,
        gpu_assumed: false,
        assumed: false,
    }
}

fn add_pools_and_performance(reader: &TreeReader, node: &mut NumaNode, ids: &[NodeId]) {
    let folder = format!("{NODES}/node{}", node.id);
    node.huge_pages = huge_pages(reader, &format!("{folder}/hugepages"));
    node.performance = performance(reader, &folder, ids);
}

/// Adds the available memory. That of the only node is that of the host: some virtual machines get
/// their memory when it is used, and count what they will get for the host only.
fn add_available(reader: &TreeReader, nodes: &mut [NumaNode]) {
    let zones = reader.text("proc/zoneinfo").unwrap_or_default();
    for node in nodes.iter_mut() {
        let meminfo = reader.text(&format!("{NODES}/node{}/meminfo", node.id)).unwrap_or_default();
        node.available = node_memory::available_in(node.id, &meminfo, &zones);
    }
    if let [node] = nodes {
        let meminfo = reader.text("proc/meminfo").unwrap_or_default();
        node.available = memory_line(&meminfo, "MemAvailable:").or(node.available);
    }
}

fn whole_host(reader: &TreeReader, cpus: CpuSet) -> NumaNode {
    let meminfo = reader.text("proc/meminfo").unwrap_or_default();
    NumaNode {
        id: NodeId(0),
        cpus,
        memory: memory_line(&meminfo, "MemTotal:"),
        free: memory_line(&meminfo, "MemFree:"),
        available: memory_line(&meminfo, "MemAvailable:"),
        distances: Vec::new(),
        huge_pages: huge_pages(reader, "sys/kernel/mm/hugepages"),
        performance: None,
        gpu: None,
        gpu_assumed: false,
        assumed: true,
    }
}

/// Returns the number at the end of a name such as `node3`.
fn number(name: &str, prefix: &str) -> Option<u32> {
    let digits = name.strip_prefix(prefix)?;
    digits.parse().ok().filter(|_| digits.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Returns the bytes of a line of meminfo, which states KiB behind the name. Files of nodes have
/// the number of the node before the name.
fn memory_line(meminfo: &str, name: &str) -> Option<u64> {
    let words = meminfo.lines().map(|line| line.split_whitespace().skip_while(|word| *word != name));
    let value = words.filter_map(|mut words| words.nth(1)).next()?;
    value.parse::<u64>().ok()?.checked_mul(1024)
}

/// Returns the distances to all nodes. The file has one number for each node, in their order.
fn distances(reader: &TreeReader, folder: &str, ids: &[NodeId]) -> Vec<(NodeId, u32)> {
    let text = reader.text(&format!("{folder}/distance")).unwrap_or_default();
    let row: Option<Vec<u32>> = text.split_whitespace().map(|word| word.parse().ok()).collect();
    let row = row.filter(|row| row.len() == ids.len()).unwrap_or_default();
    ids.iter().copied().zip(row).collect()
}

fn huge_pages(reader: &TreeReader, folder: &str) -> Vec<NodeHugePages> {
    let pool = |name: String| {
        let size: u64 = name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
        let value = |file: &str| reader.value(&format!("{folder}/{name}/{file}"));
        let (total, free) = (value("nr_hugepages")?, value("free_hugepages")?);
        Some(NodeHugePages { size: size.checked_mul(1024)?, total, free })
    };
    let mut pools: Vec<NodeHugePages> = reader.names(folder).into_iter().filter_map(pool).collect();
    pools.sort_by_key(|pool| pool.size);
    pools
}

/// Returns the performance of a node's memory for the nodes that exist.
fn performance(reader: &TreeReader, node: &str, ids: &[NodeId]) -> Option<MemoryPerformance> {
    let folder = format!("{node}/access0/initiators");
    let value = |file: &str| reader.value(&format!("{folder}/{file}")).filter(|value| *value > 0);
    let names = reader.names(&folder);
    let numbers = names.iter().filter_map(|name| number(name, "node"));
    let found = MemoryPerformance {
        initiators: numbers.map(NodeId).filter(|id| ids.contains(id)).collect(),
        read_bandwidth: value("read_bandwidth"),
        write_bandwidth: value("write_bandwidth"),
        read_latency: value("read_latency"),
        write_latency: value("write_latency"),
    };
    (found != MemoryPerformance::default()).then_some(found)
}

/// Returns true if the node has CPUs, online or offline.
pub(crate) fn is_node_of_cpus(reader: &TreeReader, id: NodeId) -> bool {
    reader.names(&format!("{NODES}/node{id}")).iter().any(|name| number(name, "cpu").is_some())
}

/// Returns true if the firmware states the performance of a node's memory.
pub(crate) fn memory_is_described(reader: &TreeReader, id: NodeId) -> bool {
    performance(reader, &format!("{NODES}/node{id}"), &node_ids(reader)).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory_tree::MemoryTree;

    fn two_nodes() -> MemoryTree {
        MemoryTree::new()
            .file("sys/devices/system/cpu/online", "0-6\n")
            .file("sys/devices/system/node/node0/cpulist", "0-3\n\0")
            .file(
                "sys/devices/system/node/node0/meminfo",
                "Node 0 MemTotal:  2048 kB\nNode 0 MemFree: 1024 kB\n",
            )
            .file("sys/devices/system/node/node0/distance", "10 21\n")
            .file("sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages", "8\n")
            .file("sys/devices/system/node/node0/hugepages/hugepages-2048kB/free_hugepages", "5\n")
            .file("sys/devices/system/node/node0/access0/initiators/read_bandwidth", "100\n")
            .file("sys/devices/system/node/node0/access0/initiators/write_latency", "0\n")
            .link("sys/devices/system/node/node0/access0/initiators/node0", "../../../node0")
            .file("sys/devices/system/node/node0/access0/initiators/node7/absent", "")
            .file("sys/devices/system/node/node4/cpumap", "000000f0\n")
            .file("sys/devices/system/node/node4/meminfo", "Node 4 MemTotal:  0 kB\n")
            .file("sys/devices/system/node/node4/distance", "21\n")
    }

    #[test]
    fn nodes_have_their_online_cpus_memory_and_pools() {
        let tree = two_nodes();
        let nodes = nodes(&TreeReader::new(&tree), NodeParts::All);
        assert_eq!(nodes.iter().map(|node| node.id.0).collect::<Vec<_>>(), [0, 4]);
        let (zero, four) = (&nodes[0], &nodes[1]);
        assert_eq!((zero.memory(), zero.free(), zero.has_memory()), (Some(2 << 20), Some(1 << 20), true));
        assert_eq!(zero.huge_pages(), [NodeHugePages { size: 2 << 20, total: 8, free: 5 }]);
        assert_eq!((zero.distance(NodeId(4)), zero.distance(NodeId(1))), (Some(21), None));
        let performance = zero.performance().unwrap();
        assert_eq!((performance.read_bandwidth, performance.write_latency), (Some(100), None));
        assert_eq!(performance.initiators, [NodeId(0)]);
        // CPU 7 is offline.
        assert_eq!(four.cpus().to_string(), "4-6");
        assert!(!four.has_memory() && !four.is_assumed() && four.performance().is_none());
        // A row of one number cannot be the distances of two nodes.
        assert_eq!(four.distances(), []);
        let short = super::nodes(&TreeReader::new(&tree), NodeParts::CpusAndMemory);
        assert_eq!((short[0].cpus(), short[0].memory()), (zero.cpus(), zero.memory()));
        assert!(short[0].huge_pages().is_empty() && short[0].performance().is_none());
        assert!(short[0].available().is_none());
    }

    #[test]
    fn the_page_cache_is_available_and_the_reserves_are_not() {
        let meminfo = "Node 0 MemTotal: 4000 kB\nNode 0 MemFree: 1000 kB\nNode 0 Inactive(file): 500 kB\n";
        let available = |tree: &MemoryTree| nodes(&TreeReader::new(tree), NodeParts::All)[0].available();
        let tree = MemoryTree::new().file("sys/devices/system/node/node0/meminfo", meminfo);
        assert_eq!(available(&tree), Some(1500 << 10));
        let tree = tree.file("proc/zoneinfo", "Node 0, zone Normal\n high 100\n managed 1000\n");
        assert_eq!(available(&tree), Some(1100 << 10));
        // The only node has the memory of the host, two have their own.
        let tree = tree.file("proc/meminfo", "MemAvailable: 9000 kB\n");
        assert_eq!(available(&tree), Some(9000 << 10));
        assert_eq!(available(&tree.folder("sys/devices/system/node/node1")), Some(1100 << 10));
    }

    #[test]
    fn without_nodes_one_node_is_assumed() {
        let tree = MemoryTree::new()
            .file("sys/devices/system/cpu/cpu0/topology/core_id", "0\n")
            .file("sys/devices/system/cpu/cpu1/online", "1\n")
            .file("sys/devices/system/cpu/cpu2/online", "0\n")
            .file("sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages", "2\n")
            .file("sys/kernel/mm/hugepages/hugepages-1048576kB/free_hugepages", "2\n")
            .file("proc/meminfo", "MemTotal:       16384 kB\nMemFree:  1 kB\n");
        let nodes = nodes(&TreeReader::new(&tree), NodeParts::All);
        assert_eq!(nodes.len(), 1);
        assert!(nodes[0].is_assumed() && nodes[0].has_memory());
        assert_eq!((nodes[0].id(), nodes[0].cpus().to_string().as_str()), (NodeId(0), "0-1"));
        assert_eq!((nodes[0].memory(), nodes[0].huge_pages()[0].size), (Some(16 << 20), 1 << 30));
    }

    #[test]
    fn without_sys_the_cpus_are_those_of_proc() {
        let tree = MemoryTree::new().file("proc/stat", "cpu  1 2 3\ncpu0 1 2 3\ncpu3 1 2 3\nintr 5 6\n");
        let nodes = nodes(&TreeReader::new(&tree), NodeParts::All);
        assert_eq!((nodes.len(), nodes[0].cpus().to_string().as_str()), (1, "0,3"));
    }

    #[test]
    fn garbage_is_no_figure() {
        let tree = MemoryTree::new()
            .file("sys/devices/system/node/node0/cpulist", "all of them")
            .file(
                "sys/devices/system/node/node0/meminfo",
                "Node 0 MemTotal: 99999999999999999999 kB\nMemFree:",
            )
            .file("sys/devices/system/node/node0/distance", "ten")
            .file("sys/devices/system/node/node0/hugepages/hugepages-kB/nr_hugepages", "1")
            .folder("sys/devices/system/node/node99999999999")
            .folder("sys/devices/system/node/node-1")
            .folder("sys/devices/system/node/nodes");
        let nodes = nodes(&TreeReader::new(&tree), NodeParts::All);
        assert_eq!(nodes.len(), 1);
        assert!(!nodes[0].has_cpus() && nodes[0].memory().is_none() && nodes[0].free().is_none());
        assert!(nodes[0].distances().is_empty() && nodes[0].huge_pages().is_empty());
    }
}
