//! The topology as text.

use std::fmt::Write;

use hostbuf::Bytes;
use hostbuf_memory::placement::name_nodes;
use hostbuf_topology::{DeviceKind, IoDevice, NumaNode, Topology};

use super::Restriction;
use crate::columns::align;
use crate::printable::printable;

/// The meaning of the names in the matrix.
const LEGEND: &str = "
  X     the device itself, or devices of one PCI function
  NV#   # NVLinks
  PIX   at most one PCIe switch
  PXB   several PCIe switches
  PHB   the host bridge of both, usually the CPU
  NODE  host bridges of one NUMA node
  SYS   the connection between NUMA nodes
  ?     assumed, since the kernel does not state it
";

/// Formats the topology of `host`. `restriction` is that of this process, or `None` for a recorded
/// tree.
pub fn text(host: &str, topology: &Topology, restriction: Option<&Restriction>) -> String {
    let mut text = format!("{}\n\n{}", printable(host), align(&nodes(topology)));
    if let Some(restriction) = restriction.filter(|restriction| !restriction.is_none) {
        writeln!(text, "\n  {}", restriction.text()).expect("to memory");
    }
    let performance = performance(topology);
    if !performance.is_empty() {
        write!(text, "\n{performance}").expect("to memory");
    }
    if !topology.devices().is_empty() {
        write!(text, "\n{}", align(&devices(topology))).expect("to memory");
    }
    let matrix = matrix(topology);
    if !matrix.is_empty() {
        write!(text, "\n{}", align(&matrix)).expect("to memory");
    }
    if topology.devices_of(DeviceKind::Storage).count() > 1 {
        text.push_str("\n  Paths between drives: hostbuf topology --json\n");
    }
    if !matrix.is_empty() {
        text.push_str(LEGEND);
    }
    if !topology.assumptions().is_empty() {
        text.push_str("\nassumed\n");
    }
    for assumption in topology.assumptions() {
        writeln!(text, "  {}: {}", printable(assumption.subject()), printable(assumption.text()))
            .expect("to memory");
        // A remedy is for the host of the tree, not for this one.
        if let Some(remedy) = assumption.remedy().filter(|_| restriction.is_some()) {
            writeln!(text, "    -> {remedy}").expect("to memory");
        }
    }
    text
}

fn row(cells: &[&str]) -> Vec<String> {
    cells.iter().map(|&cell| cell.to_owned()).collect()
}

/// Formats a size. The sizes of a column have the same form, so a whole number has no decimal.
fn bytes(bytes: Option<u64>) -> String {
    bytes.map_or("?".into(), |bytes| Bytes(bytes).to_string().replace(".0 ", " "))
}

/// Returns a line for each node whose performance the firmware states.
fn performance(topology: &Topology) -> String {
    let one = |node: &NumaNode| {
        let figures = node.performance()?;
        let of = |action: &str, bandwidth: Option<u64>, latency: Option<u64>| {
            let figures =
                [bandwidth.map(|rate| format!("{rate} MiB/s")), latency.map(|time| format!("{time} ns"))];
            let figures: Vec<String> = figures.into_iter().flatten().collect();
            (!figures.is_empty()).then(|| format!("{action} {}", figures.join(", ")))
        };
        let both = [
            of("read", figures.read_bandwidth, figures.read_latency),
            of("write", figures.write_bandwidth, figures.write_latency),
        ];
        let from = match figures.initiators.is_empty() {
            true => String::new(),
            false => format!(" from {}", name_nodes(figures.initiators.iter().copied())),
        };
        let both: Vec<String> = both.into_iter().flatten().collect();
        (!both.is_empty()).then(|| format!("  memory of node {}{from}: {}\n", node.id(), both.join("; ")))
    };
    topology.nodes().iter().filter_map(one).collect()
}

fn nodes(topology: &Topology) -> Vec<Vec<String>> {
    let mut rows = vec![row(&["NODE", "CPUS", "MEMORY", "AVAILABLE", "HUGE PAGES FREE", "DISTANCES"])];
    let list = |items: Vec<String>, separator: &str| match items.is_empty() {
        true => "-".to_owned(),
        false => items.join(separator),
    };
    for node in topology.nodes() {
        let pools = node
            .huge_pages()
            .iter()
            .filter(|pool| pool.total > 0)
            .map(|pool| format!("{} of {} x {}", pool.free, pool.total, Bytes(pool.size)));
        let distances = node.distances().iter().map(|(_, distance)| distance.to_string());
        rows.push(vec![
            number(node),
            list(vec![node.cpus().to_string()].into_iter().filter(|cpus| !cpus.is_empty()).collect(), ""),
            bytes(node.memory()),
            bytes(node.available()),
            list(pools.collect(), ", "),
            list(distances.collect(), " "),
        ]);
    }
    rows
}

/// Returns the number of a node with its peculiarity.
fn number(node: &NumaNode) -> String {
    match node.gpu() {
        Some(gpu) => format!("{} (memory of GPU {gpu})", node.id()),
        None if node.is_gpu_memory_assumed() => format!("{} (memory of a GPU?)", node.id()),
        None if node.is_assumed() => format!("{}?", node.id()),
        None => node.id().to_string(),
    }
}

fn devices(topology: &Topology) -> Vec<Vec<String>> {
    let mut rows = vec![row(&["DEVICE", "KIND", "PCI ADDRESS", "NODE", "STATE", "DETAILS"])];
    for device in topology.devices() {
        let node = device.node().map_or("?".to_owned(), |node| {
            format!("{node}{}", if device.node_is_assumed() { "?" } else { "" })
        });
        rows.push(vec![
            device.name().to_owned(),
            device.kind().name().to_owned(),
            device.pci_address().map_or("-".into(), |address| address.to_string()),
            node,
            state(device).to_owned(),
            details(device),
        ]);
    }
    rows
}

fn state(device: &IoDevice) -> &'static str {
    match (device.kind(), device.is_usable()) {
        (DeviceKind::Nic, true) => "active",
        (DeviceKind::Nic, false) => "down",
        (DeviceKind::Storage, false) => "empty",
        (_, true) => "-",
        (_, false) => "not reported",
    }
}

/// Returns the model and the other names of a device.
fn details(device: &IoDevice) -> String {
    let names = device.os_names().iter().map(String::as_str).filter(|name| *name != device.name());
    let words: Vec<&str> = device.model().into_iter().chain(device.uuid()).chain(names).collect();
    words.join(", ")
}

/// Returns the paths from all GPUs, network cards and drives to the GPUs and network cards. Data
/// moves between a drive and one of these; with columns for 24 drives the lines would not fit into
/// a terminal.
fn matrix(topology: &Topology) -> Vec<Vec<String>> {
    let of = |kinds: &[DeviceKind]| -> Vec<&IoDevice> {
        topology.devices().iter().filter(|device| kinds.contains(&device.kind())).collect()
    };
    let columns = of(&[DeviceKind::Gpu, DeviceKind::Nic]);
    let lines = of(&[DeviceKind::Gpu, DeviceKind::Nic, DeviceKind::Storage]);
    if columns.is_empty() || lines.len() < 2 {
        return Vec::new();
    }
    let mut rows = vec![row(&[""])];
    rows[0].extend(columns.iter().map(|device| device.name().to_owned()));
    for line in lines {
        let paths = columns.iter().map(|column| topology.path(line.index(), column.index()).to_string());
        rows.push([line.name().to_owned()].into_iter().chain(paths).collect());
    }
    rows
}
