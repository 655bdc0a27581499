//! Reads a topology.

use std::collections::BTreeMap;
use std::path::Path;

use crate::assumption::Assumption;
use crate::cpu_set::CpuSet;
use crate::disk_tree::DiskTree;
use crate::gpu_nodes::mark_gpu_memory;
use crate::io_device::{DeviceIndex, DeviceKind, IoDevice};
use crate::numa_node::{NodeId, NumaNode};
use crate::nvml;
use crate::nvml_report::{NVML_FILE, NvmlQuestions, NvmlReport};
use crate::read_gpus::{NVIDIA, NVIDIA_GPUS, gpus};
use crate::read_nics::nics;
use crate::read_nodes::{NodeParts, node_ids, nodes};
use crate::read_storage::{BlockDevices, block_devices};
use crate::recorded_error::RecordedError;
use crate::recording_tree::RecordingTree;
use crate::topology::Topology;
use crate::tree::{Tree, TreeReader, natural_key};
use crate::visible_gpus::CudaVariables;

/// The number of devices of a topology. A matrix of paths has the square of it.
const DEVICE_LIMIT: usize = 1024;

impl NumaNode {
    /// Reads the NUMA nodes of this host, in the order of their numbers, with their CPUs and memory
    /// alone. A host that does not list nodes has one, which is assumed.
    #[must_use]
    pub fn all_of_this_host() -> Vec<NumaNode> {
        marked_nodes(&TreeReader::new(&DiskTree::new(Path::new("/"))), NodeParts::CpusAndMemory)
    }
}

impl Topology {
    /// Reads the topology of this host from `/sys`, `/proc` and NVML, which is loaded if it is
    /// installed. CUDA is not initialised.
    #[must_use]
    pub fn discover() -> Topology {
        read(
            &DiskTree::new(Path::new("/")),
            nvml::report(NvmlQuestions::ALL).map_err(Some),
            TopologyParts::ALL,
        )
    }

    /// Reads the topology of this host without NVML, which needs up to a second on some hosts. NUMA
    /// nodes are the same; GPUs have neither UUIDs nor NVLinks.
    #[must_use]
    pub fn discover_without_nvml() -> Topology {
        read(&DiskTree::new(Path::new("/")), Err(None), TopologyParts::ALL)
    }

    /// Reads the part of this host's topology that a rank of a job with these variables needs at
    /// its start: the NUMA nodes, the network cards and the GPUs. It takes less time than
    /// [`discover`](Topology::discover), and lacks drives, NVLinks and pools of huge pages. GPUs
    /// are read, with NVML, only if NVIDIA's driver is loaded and `variables` do not hide all.
    #[must_use]
    pub fn discover_for_rank(variables: &CudaVariables) -> Topology {
        // The devices by which libraries reach the driver, on Linux and on Linux under Windows.
        let has_driver = || ["/dev/nvidiactl", "/dev/dxg"].iter().any(|device| Path::new(device).exists());
        let gpus = !variables.hide_all() && has_driver();
        let tree = DiskTree::new(Path::new("/"));
        let questions = NvmlQuestions { nodes: lacks_nodes_of_gpus(&TreeReader::new(&tree)), links: false };
        let report = if gpus { nvml::report(questions).map_err(Some) } else { Err(None) };
        let parts = TopologyParts { nodes: NodeParts::CpusAndMemory, gpus, drives: false };
        read(&tree, report, parts)
    }

    /// Reads the topology of the host on which the tree of files below `root` was recorded. `root`
    /// contains the folders `sys` and `proc`, as [`record`](Topology::record) and
    /// hwloc-gather-topology write them. Nothing of this host is read, and nothing outside `root`.
    ///
    /// # Errors
    /// [`RecordedError::NotATree`] if `root` contains no folder `sys`.
    pub fn recorded(root: &Path) -> Result<Topology, RecordedError> {
        if !root.join("sys").is_dir() {
            return Err(RecordedError::NotATree { root: root.to_owned() });
        }
        Ok(recorded_tree(&DiskTree::new(root)))
    }

    /// Reads the topology of this host, and writes the files, links and answers of NVML that it
    /// consists of below `folder`, for [`recorded`](Topology::recorded). The files contain neither
    /// network addresses nor serial numbers, except for the UUIDs of GPUs.
    ///
    /// # Errors
    /// [`RecordedError::Exists`] if `folder` already contains a tree, and [`RecordedError::Io`] if
    /// it cannot be written.
    pub fn record(folder: &Path) -> Result<Topology, RecordedError> {
        if folder.join("sys").exists() {
            return Err(RecordedError::Exists { root: folder.to_owned() });
        }
        let host = DiskTree::new(Path::new("/"));
        let recording = RecordingTree::new(&host);
        let report = nvml::report(NvmlQuestions::ALL);
        let topology = read(&recording, report.clone().map_err(Some), TopologyParts::ALL);
        let write = || {
            recording.write(folder)?;
            if let Ok(report) = &report {
                let path = folder.join(NVML_FILE);
                path.parent().map_or(Ok(()), std::fs::create_dir_all)?;
                std::fs::write(path, report.to_text())?;
            }
            Ok(())
        };
        let doing = || format!("writing the topology of this host to {}", folder.display());
        write().map(|()| topology).map_err(|source| RecordedError::Io { doing: doing(), source })
    }
}

/// Returns the topology of a recorded tree.
pub(crate) fn recorded_tree(tree: &dyn Tree) -> Topology {
    let text = TreeReader::new(tree).text(NVML_FILE);
    let report = text.map(|text| NvmlReport::from_text(&text));
    read(tree, report.ok_or_else(|| Some("the tree has no record of it".into())), TopologyParts::ALL)
}

/// The parts of a topology that are read besides network cards.
struct TopologyParts {
    nodes: NodeParts,
    gpus: bool,
    drives: bool,
}

impl TopologyParts {
    const ALL: TopologyParts = TopologyParts { nodes: NodeParts::All, gpus: true, drives: true };
}

/// Reads a topology from a tree and the report of NVML, or the reason why NVML did not answer; the
/// reason is `None` if it was not asked. Only `parts` are read.
fn read(tree: &dyn Tree, report: Result<NvmlReport, Option<String>>, parts: TopologyParts) -> Topology {
    let reader = TreeReader::new(tree);
    let mut topology = Topology { nodes: marked_nodes(&reader, parts.nodes), ..Topology::default() };
    let blocks = if parts.drives { block_devices(&reader) } else { BlockDevices::default() };
    let mut found = if parts.gpus { gpus(&reader, report.as_ref().ok()) } else { Vec::new() };
    found.extend(nics(&reader));
    found.extend(blocks.drives);
    let key = |device: &IoDevice| {
        (device.kind, device.nvml_index.unwrap_or(u32::MAX), device.address, natural_key(&device.name))
    };
    found.sort_by_cached_key(|(device, _)| key(device));
    found.truncate(DEVICE_LIMIT);
    for (index, (mut device, path)) in found.into_iter().enumerate() {
        let nvml_nodes = report.iter().flat_map(|report| &report.gpus);
        let gpu = nvml_nodes
            .filter(|_| device.kind == DeviceKind::Gpu)
            .find(|gpu| Some(gpu.address) == device.address);
        let exists = |node: &NodeId| topology.node(*node).is_some();
        let by_kernel = || path.iter().flat_map(|path| stated_nodes(&reader, path));
        let by_nvml = || gpu.filter(|gpu| gpu.nodes.len() == 1).map(|gpu| NodeId(gpu.nodes[0]));
        let stated = by_kernel()
            .find(exists)
            .or_else(|| by_nvml().filter(exists))
            .or_else(|| node_of_local_cpus(&reader, path.as_deref()?, &topology.nodes));
        device.index = DeviceIndex(index);
        device.absent_node = if stated.is_none() { by_kernel().next() } else { None };
        device.located = path.is_some_and(|path| path.starts_with("sys/devices/"));
        device.node_assumed = stated.is_none();
        device.node = stated.or_else(|| only_node(&topology.nodes));
        topology.devices.push(device);
    }
    topology.below = blocks.below;
    topology.links = report.as_ref().map(|report| links(report, &topology.devices)).unwrap_or_default();
    topology.assumptions = assumptions(&topology, report.as_ref().err().and_then(Option::as_deref));
    topology
}

/// Returns the nodes, of which those that are the memory of a GPU are marked.
fn marked_nodes(reader: &TreeReader, parts: NodeParts) -> Vec<NumaNode> {
    let mut nodes = nodes(reader, parts);
    mark_gpu_memory(reader, &mut nodes);
    nodes
}

/// Returns true if the kernel does not state an existing node of a GPU of NVIDIA's driver, on a
/// host with several.
pub(crate) fn lacks_nodes_of_gpus(reader: &TreeReader) -> bool {
    let ids = node_ids(reader);
    let lacks_node = |name: &String| {
        let path = reader.resolve(&format!("sys/bus/pci/devices/{name}"));
        path.is_none_or(|path| !stated_nodes(reader, &path).any(|node| ids.contains(&node)))
    };
    ids.len() > 1 && reader.names(NVIDIA_GPUS).iter().any(lacks_node)
}

/// Returns the nodes that the kernel states for a device and the folders above it. The first that
/// exists is next to the device: firmware and virtual machines may state nodes that do not exist.
fn stated_nodes<'a>(reader: &'a TreeReader, path: &'a str) -> impl Iterator<Item = NodeId> + 'a {
    above(path).filter_map(|folder| reader.value(&format!("{folder}/numa_node"))).map(NodeId)
}

/// Returns the node that has the CPUs next to a device, if the host has CPUs on several nodes. The
/// kernel shows all CPUs if it does not know the node.
fn node_of_local_cpus(reader: &TreeReader, path: &str, nodes: &[NumaNode]) -> Option<NodeId> {
    if nodes.iter().filter(|node| node.has_cpus()).count() < 2 {
        return None;
    }
    let local_cpus = |folder: &str| -> Option<CpuSet> {
        let mask = || CpuSet::from_mask(&reader.text(&format!("{folder}/local_cpus"))?).ok();
        reader.value(&format!("{folder}/local_cpulist")).or_else(mask)
    };
    let cpus = above(path).find_map(local_cpus)?;
    nodes.iter().find(|node| !cpus.is_empty() && cpus.is_subset(&node.cpus)).map(NumaNode::id)
}

/// Returns `path` and the folders above it, up to that of all devices.
fn above<'a>(path: &'a str) -> impl Iterator<Item = &'a str> {
    let parent = |path: &&'a str| path.rsplit_once('/').map(|(parent, _)| parent);
    std::iter::successors(Some(path), parent).take_while(|path| path.starts_with("sys/devices/"))
}

/// Returns the node of a host with one. The memory of a GPU does not count, and neither does a node
/// without CPUs and memory.
fn only_node(nodes: &[NumaNode]) -> Option<NodeId> {
    let is_empty = |node: &NumaNode| !node.has_cpus() && node.memory == Some(0);
    let mut host = nodes.iter().filter(|node| !node.is_gpu_memory() && !is_empty(node));
    host.next().map(NumaNode::id).filter(|_| host.next().is_none())
}

/// Returns the numbers of NVLinks between the devices of a report.
fn links(report: &NvmlReport, devices: &[IoDevice]) -> BTreeMap<(DeviceIndex, DeviceIndex), u32> {
    let device =
        |index: u32| devices.iter().find(|device| device.nvml_index == Some(index)).map(IoDevice::index);
    let links = report.links.iter().filter_map(|link| {
        let (a, b) = (device(link.from)?, device(link.to)?);
        (a != b && link.count > 0).then(|| ((a.min(b), a.max(b)), link.count))
    });
    links.collect()
}

/// Returns the assumptions of a topology, the same one of several devices once.
fn assumptions(topology: &Topology, no_nvml: Option<&str>) -> Vec<Assumption> {
    let mut found: Vec<Assumption> = Vec::new();
    let mut add = |subject: &str, text: String, remedy: Option<&str>| match found
        .iter_mut()
        .find(|known| known.text == text && known.remedy.as_deref() == remedy)
    {
        Some(known) => known.subject = format!("{}, {subject}", known.subject),
        None => found.push(Assumption { subject: subject.into(), text, remedy: remedy.map(Into::into) }),
    };
    if topology.nodes.iter().any(NumaNode::is_assumed) {
        add(
            "nodes",
            "the kernel shows no NUMA nodes, so one node with all CPUs and all memory is assumed".into(),
            Some("mount /sys in the container, or use a kernel with CONFIG_NUMA"),
        );
    }
    for node in topology.nodes.iter().filter(|node| node.gpu_assumed) {
        let text =
            "it has no CPUs, and the driver of a GPU is hidden, so it is assumed to be the memory of a GPU";
        add(
            &format!("node {}", node.id),
            text.into(),
            Some("mount /proc/driver/nvidia of the host in the container"),
        );
    }
    let is_nvidia = |device: &IoDevice| device.kind == DeviceKind::Gpu && device.vendor == Some(NVIDIA);
    if let Some(reason) = no_nvml.filter(|_| topology.devices.iter().any(is_nvidia)) {
        add(
            "NVML",
            format!("{reason}, so UUIDs and NVLinks of GPUs are unknown"),
            Some(
                "install the driver's libnvidia-ml.so.1, or give it to the container (NVIDIA Container Toolkit)",
            ),
        );
    }
    for device in &topology.devices {
        if device.node_assumed {
            let cause = match device.absent_node {
                Some(node) => format!("its NUMA node {node} does not exist"),
                None => "no NUMA node is stated".into(),
            };
            let (text, remedy) = match device.node {
                Some(node) => (format!("{cause}, so the only node is assumed, node {node}"), None),
                None => (
                    format!("{cause}, so the device is assumed to be far from all nodes"),
                    Some("update the firmware, or configure the device's node in the virtual machine"),
                ),
            };
            add(&device.name, text, remedy);
        }
        if !device.located {
            let text =
                "the location in /sys/devices is unknown, so the types of paths are assumed from NUMA nodes"
                    .into();
            add(&device.name, text, Some("mount /sys in the container"));
        }
    }
    found
}
