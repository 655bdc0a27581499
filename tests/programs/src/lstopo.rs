//! The comparison of a topology with hwloc's `lstopo`.
//!
//! Rules state the differences by design:
//!
//! - hwloc gives a node without CPUs the CPUs of its nearest nodes; hostbuf gives it none.
//! - hwloc shows kinds of devices that are none of hostbuf's: DMA engines, coprocessors, `dax`
//!   (which are character devices), and the devices of GPU libraries.
//! - hwloc has no PCI domains of more than 16 bits, unless it is configured so.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use hostbuf_topology::{CpuSet, DeviceKind, IoDevice, NodeId, NumaNode, PciAddress, Topology};
use roxmltree::{Document, Node};

/// The program of hwloc without graphics.
pub const LSTOPO: &str = "lstopo-no-graphics";

/// Returns the report of `lstopo` on the recorded tree below `root`, or on this host if `root` is
/// `/`, as XML.
///
/// # Errors
/// The reason, if `lstopo` cannot be started or fails.
pub fn xml(root: &Path) -> Result<String, String> {
    let mut command = Command::new(LSTOPO);
    if root != Path::new("/") {
        command.arg("--input").arg(root).args(["--if", "fsroot"]);
    }
    // Also nodes that are the memory of a GPU, and CPUs that a cgroup forbids.
    command.env("HWLOC_KEEP_NVIDIA_GPU_NUMA_NODES", "1").env("HWLOC_HIDE_ERRORS", "2");
    command.args(["--whole-io", "--disallowed", "-.xml"]);
    let output = command.output().map_err(|error| format!("{LSTOPO} cannot be started: {error}"))?;
    match output.status.success() {
        true => String::from_utf8(output.stdout).map_err(|error| error.to_string()),
        false => Err(format!("{LSTOPO}: {}: {}", output.status, String::from_utf8_lossy(&output.stderr))),
    }
}

/// Returns the differences between a topology and the report of `lstopo`, one line each.
///
/// # Errors
/// The reason, if `xml` is no report of `lstopo`.
pub fn compare(topology: &Topology, xml: &str) -> Result<Vec<String>, String> {
    let options = roxmltree::ParsingOptions { allow_dtd: true, ..Default::default() };
    let document = Document::parse_with_options(xml, options).map_err(|error| error.to_string())?;
    let mut differences = Differences(Vec::new());
    differences.nodes(topology, &document);
    differences.distances(topology, &document);
    differences.devices(topology, &document);
    differences.display_controllers(topology, &document);
    Ok(differences.0)
}

struct Differences(Vec<String>);

impl Differences {
    fn check<T: PartialEq + std::fmt::Debug>(&mut self, subject: &str, here: &T, hwloc: &T) {
        if here != hwloc {
            self.0.push(format!("{subject}: {here:?}, and {hwloc:?} by lstopo"));
        }
    }

    fn nodes(&mut self, topology: &Topology, document: &Document) {
        let theirs: BTreeMap<NodeId, Node> = objects(document, "NUMANode")
            .filter_map(|node| Some((NodeId(number(node, "os_index")?), node)))
            .collect();
        let ours: BTreeSet<NodeId> = topology.nodes().iter().map(NumaNode::id).collect();
        self.check("nodes", &ours, &theirs.keys().copied().collect());
        for node in topology.nodes() {
            let Some(object) = theirs.get(&node.id()) else { continue };
            let name = format!("node {}", node.id());
            if node.has_cpus() {
                self.check(&format!("{name}: CPUs"), &node.cpus().to_string(), &cpus(*object).to_string());
            }
            let memory = number(*object, "local_memory").unwrap_or(0);
            self.check(&format!("{name}: memory"), &node.memory().unwrap_or(0), &memory);
            let pools: BTreeMap<u64, u64> =
                node.huge_pages().iter().map(|pool| (pool.size, pool.total)).collect();
            let mut pages: BTreeMap<u64, u64> = object
                .children()
                .filter(|child| child.has_tag_name("page_type"))
                .filter_map(|page| Some((number(page, "size")?, number(page, "count")?)))
                .collect();
            // The first is the size of small pages.
            pages.pop_first();
            self.check(&format!("{name}: huge pages"), &pools, &pages);
            self.check(
                &format!("{name}: memory of a GPU"),
                &node.gpu().is_some(),
                &(object.attribute("subtype") == Some("GPUMemory")),
            );
        }
    }

    fn distances(&mut self, topology: &Topology, document: &Document) {
        let is_latency =
            |node: &Node| node.has_tag_name("distances2") && node.attribute("name") == Some("NUMALatency");
        let Some(matrix) = document.descendants().find(is_latency) else { return };
        let numbers = |tag: &str| -> Vec<u32> {
            let texts =
                matrix.children().filter(|child| child.has_tag_name(tag)).filter_map(|child| child.text());
            texts.flat_map(str::split_whitespace).filter_map(|word| word.parse().ok()).collect()
        };
        let (nodes, values) = (numbers("indexes"), numbers("u64values"));
        for (row, &from) in values.chunks(nodes.len().max(1)).zip(&nodes) {
            let node = topology.node(NodeId(from));
            let ours: Vec<_> =
                nodes.iter().map(|&to| node.and_then(|node| node.distance(NodeId(to)))).collect();
            self.check(&format!("node {from}: distances"), &ours, &row.iter().copied().map(Some).collect());
        }
    }

    /// Compares the devices that the kernel names, with their places in the PCI tree.
    fn devices(&mut self, topology: &Topology, document: &Document) {
        let theirs: BTreeMap<&str, Node> = objects(document, "OSDev")
            .filter_map(|device| Some((device.attribute("name")?, device)))
            .filter(|(name, device)| is_comparable(name, device.attribute("osdev_type")))
            .collect();
        let ours: BTreeMap<&str, &IoDevice> = topology
            .devices()
            .iter()
            .flat_map(|device| device.os_names().iter().map(move |name| (name.as_str(), device)))
            .collect();
        self.check("devices", &ours.keys().collect::<Vec<_>>(), &theirs.keys().collect());
        for (name, device) in ours {
            let Some(object) = theirs.get(name) else { continue };
            if device.pci_address().is_some_and(|address| address.domain > 0xffff) {
                continue;
            }
            self.place(name, topology, device, *object);
        }
    }

    /// Compares display controllers, which often have no name: by their addresses.
    fn display_controllers(&mut self, topology: &Topology, document: &Document) {
        let is_display =
            |object: &Node| object.attribute("pci_type").is_some_and(|class| class.starts_with("03"));
        let theirs: BTreeMap<PciAddress, Node> = objects(document, "PCIDev")
            .filter(is_display)
            .filter_map(|object| Some((address(object)?, object)))
            .collect();
        for (address, object) in &theirs {
            let found = topology.find(&address.to_string());
            self.check(&format!("display controller {address}"), &found.is_some(), &true);
            if let Some(device) = found {
                self.place(device.name(), topology, device, *object);
            }
        }
        let shown = topology.devices().iter().filter(|device| {
            matches!(device.kind(), DeviceKind::Gpu | DeviceKind::Display)
                && device.pci_address().is_some_and(|address| address.domain <= 0xffff)
        });
        self.check("number of display controllers", &shown.count(), &theirs.len());
    }

    /// Compares the function, the bridges above it, and the node.
    fn place(&mut self, name: &str, topology: &Topology, device: &IoDevice, object: Node) {
        let function = object.ancestors().find(|above| above.attribute("type") == Some("PCIDev"));
        self.check(&format!("{name}: PCI address"), &device.pci_address(), &function.and_then(address));
        let mut bridges: Vec<PciAddress> = object
            .ancestors()
            .filter(|above| above.attribute("type") == Some("Bridge"))
            .filter_map(address)
            .collect();
        bridges.reverse();
        self.check(&format!("{name}: PCI parents"), &device.pci_parents(), &bridges);
        // hwloc attaches a device to the object with its local CPUs, which may be several nodes.
        let near =
            object.ancestors().find(|above| above.has_attribute("cpuset")).map(cpus).unwrap_or_default();
        let node = device.node().filter(|_| !device.node_is_assumed()).and_then(|id| topology.node(id));
        if let Some(node) = node.filter(|node| !node.cpus().is_subset(&near)) {
            self.check(&format!("{name}: CPUs of the node"), &node.cpus().to_string(), &near.to_string());
        }
    }
}

/// Returns true for the kinds of devices that hostbuf has too: drives, displays, network interfaces
/// and RDMA devices.
fn is_comparable(name: &str, kind: Option<&str>) -> bool {
    match kind {
        Some("0") => !name.starts_with("dax"),
        Some("1") => ["card", "controlD", "renderD"].iter().any(|prefix| name.starts_with(prefix)),
        Some("2" | "3") => true,
        _ => false,
    }
}

fn objects<'a>(document: &'a Document, kind: &'static str) -> impl Iterator<Item = Node<'a, 'a>> {
    document
        .descendants()
        .filter(move |node| node.has_tag_name("object") && node.attribute("type") == Some(kind))
}

fn number<T: std::str::FromStr>(node: Node, name: &str) -> Option<T> {
    node.attribute(name)?.parse().ok()
}

fn address(node: Node) -> Option<PciAddress> {
    node.attribute("pci_busid")?.parse().ok()
}

/// Returns the CPUs of an object: words as in `0x000000ff,,0x0`, where an empty one is 0.
fn cpus(node: Node) -> CpuSet {
    let words = node.attribute("cpuset").unwrap_or_default().split(',');
    let words: Vec<&str> = words
        .map(|word| word.trim_start_matches("0x"))
        .map(|word| if word.is_empty() { "0" } else { word })
        .collect();
    CpuSet::from_mask(&words.join(",")).unwrap_or_default()
}
