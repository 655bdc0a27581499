//! The topology as a picture.

use std::collections::BTreeMap;

use hostbuf::{Bytes, NodeId};
use hostbuf_topology::{DeviceKind, IoDevice, NumaNode, PathType, PciAddress, Topology};

use crate::picture::canvas::{Canvas, LINE_HEIGHT, MARGIN, Rect, TextForm};
use crate::picture::colors;
use crate::picture::nested_boxes::NestedBox;

/// The width at which the devices of a node are wrapped, in pixels.
const NODE_WIDTH: f64 = 400.0;
/// The largest number of nodes beside each other.
const NODES_IN_ROW: usize = 2;
/// The distance between two nodes, and between the parts of the picture, in pixels.
const GAP: f64 = 16.0;
/// The width and the height of a cell of a table in pixels.
const CELL: (f64, f64) = (52.0, 20.0);

/// Draws the topology of `host`: the nodes with their CPUs, memory and devices below the PCI
/// bridges, and tables of the distances and paths.
pub(super) fn draw(host: &str, topology: &Topology) -> String {
    let mut canvas = Canvas::new(&format!("the topology of {host}"));
    canvas.text(MARGIN, MARGIN + 12.0, TextForm::TITLE, host);
    let mut bottom = MARGIN + 20.0;
    let mut parts: Vec<NestedBox> = topology.nodes().iter().map(|node| node_box(topology, node)).collect();
    parts.extend(unplaced_box(topology));
    for row in parts.chunks(NODES_IN_ROW) {
        let tallest = row.iter().map(|node| node.size(NODE_WIDTH).1).fold(0.0, f64::max);
        let mut left = MARGIN;
        for node in row {
            let frame = node.draw(&mut canvas, (left, bottom), NODE_WIDTH, (NODE_WIDTH, tallest));
            left = frame.right() + GAP;
        }
        bottom += tallest + GAP;
    }
    if topology.nodes().len() > 1 {
        bottom = distances(&mut canvas, topology, bottom) + GAP;
    }
    paths(&mut canvas, topology, bottom);
    canvas.finish()
}

/// Returns the box of a node.
fn node_box(topology: &Topology, node: &NumaNode) -> NestedBox {
    let assumed = if node.is_assumed() { "?" } else { "" };
    let mut lines = vec![format!("NUMA node {}{assumed}", node.id())];
    let cpus = node.cpus();
    lines.push(match cpus.count() {
        0 => "no CPUs".to_owned(),
        count => format!("CPUs {cpus} ({count})"),
    });
    lines.push(match (node.memory(), node.available()) {
        _ if node.is_gpu_memory() => "memory of a GPU".to_owned(),
        (None | Some(0), _) => "no memory".to_owned(),
        (Some(all), Some(free)) => format!("memory {}, {} available", Bytes(all), Bytes(free)),
        (Some(all), None) => format!("memory {}", Bytes(all)),
    });
    let pools = node.huge_pages().iter().filter(|pool| pool.total > 0);
    lines.extend(
        pools.map(|pool| format!("huge pages {} x {}, {} free", pool.total, Bytes(pool.size), pool.free)),
    );
    let own = topology.devices().iter().filter(|device| device.node() == Some(node.id())).collect();
    let color = colors::of_node(node.id());
    NestedBox { line: color, ..NestedBox::new(lines, color, 0.12).around(below_bridges(own)) }
}

/// Returns the box of the devices whose node is unknown, if there are any.
fn unplaced_box(topology: &Topology) -> Option<NestedBox> {
    let own: Vec<&IoDevice> = topology.devices().iter().filter(|device| device.node().is_none()).collect();
    let lines = vec!["NUMA node unknown".to_owned()];
    let contents = below_bridges(own);
    (!contents.is_empty()).then(|| NestedBox::new(lines, colors::PAPER, 1.0).around(contents))
}

/// Returns the box of each device, below that of its host bridge.
fn below_bridges(devices: Vec<&IoDevice>) -> Vec<NestedBox> {
    let mut bridges: BTreeMap<Option<(u32, u8)>, Vec<&IoDevice>> = BTreeMap::new();
    for device in devices {
        // The root port, or the device itself, is on the root bus.
        let root = device.pci_parents().first().copied().or(device.pci_address());
        bridges.entry(root.map(|root| (root.domain, root.bus))).or_default().push(device);
    }
    let mut parts = Vec::new();
    for (bridge, devices) in bridges {
        let contents = below_ports(devices, 0);
        match bridge {
            Some((domain, bus)) => {
                let lines = vec![format!("host bridge {domain:04x}:{bus:02x}")];
                parts.push(NestedBox::new(lines, colors::PAPER, 0.75).around(contents));
            }
            None => parts.extend(contents),
        }
    }
    parts
}

/// Returns the box of each of these devices, which have the first `depth` bridges in common. A
/// bridge has a box only if paths part below it, as below a switch.
fn below_ports(devices: Vec<&IoDevice>, depth: usize) -> Vec<NestedBox> {
    let mut ports: BTreeMap<Option<PciAddress>, Vec<&IoDevice>> = BTreeMap::new();
    for device in devices {
        ports.entry(device.pci_parents().get(depth).copied()).or_default().push(device);
    }
    let mut parts = Vec::new();
    for (port, devices) in ports {
        match (port, &devices[..]) {
            (Some(port), [_, _, ..]) => {
                let has_ports = devices.iter().any(|device| device.pci_parents().len() > depth + 1);
                let contents = below_ports(devices, depth + 1);
                if contents.len() == 1 {
                    parts.extend(contents);
                } else {
                    let lines = vec![format!("{} {port}", if has_ports { "switch" } else { "port" })];
                    parts.push(NestedBox::new(lines, colors::ANY_NODE, 0.2).around(contents));
                }
            }
            _ => parts.extend(devices.into_iter().map(device_box)),
        }
    }
    parts
}

fn device_box(device: &IoDevice) -> NestedBox {
    let fill = match device.kind() {
        DeviceKind::Gpu => "#cfe8cf",
        DeviceKind::Nic => "#d1e5f0",
        _ => "#ececec",
    };
    let kind = match device.kind() {
        DeviceKind::Gpu => "GPU",
        DeviceKind::Nic if device.is_usable() => "network card",
        DeviceKind::Nic => "network card, down",
        DeviceKind::Storage => "drive",
        other => other.name(),
    };
    let mut lines = vec![device.name().to_owned(), kind.to_owned()];
    lines.extend(device.model().map(|model| TextForm::SMALL.fitting(model, 150.0)));
    let address = device.pci_address().map(|address| address.to_string());
    lines.extend(address.filter(|address| address != device.name()));
    NestedBox::new(lines, fill, 1.0)
}

/// Draws the table of the distances between nodes. Returns its lower edge.
fn distances(canvas: &mut Canvas, topology: &Topology, top: f64) -> f64 {
    let nodes = topology.nodes();
    let largest = nodes.iter().flat_map(NumaNode::distances).map(|(_, distance)| *distance).max();
    let Some(largest) = largest else { return top };
    let names: Vec<String> = nodes.iter().map(|node| format!("node {}", node.id())).collect();
    let cell = |row: usize, column: usize| {
        let distance = nodes[row].distance(nodes[column].id());
        let share = distance
            .map_or(0.0, |distance| f64::from(distance.saturating_sub(10)) / f64::from(largest.max(11) - 10));
        (distance.map_or("?".to_owned(), |distance| distance.to_string()), shade(share))
    };
    table(canvas, "Distances between nodes (10: the node itself)", &names, &names, top, cell)
}

/// Draws the table of the paths from all GPUs, network cards and drives to the GPUs and network
/// cards.
fn paths(canvas: &mut Canvas, topology: &Topology, top: f64) {
    let of = |kinds: &[DeviceKind]| -> Vec<&IoDevice> {
        topology.devices().iter().filter(|device| kinds.contains(&device.kind())).collect()
    };
    let columns = of(&[DeviceKind::Gpu, DeviceKind::Nic]);
    let lines = of(&[DeviceKind::Gpu, DeviceKind::Nic, DeviceKind::Storage]);
    if columns.is_empty() || lines.len() < 2 {
        return;
    }
    let names =
        |devices: &[&IoDevice]| devices.iter().map(|device| device.name().to_owned()).collect::<Vec<_>>();
    let cell = |row: usize, column: usize| {
        let path = topology.path(lines[row].index(), columns[column].index());
        (path.to_string(), shade(share_of(path.path_type)))
    };
    let bottom = table(canvas, "Paths between devices", &names(&lines), &names(&columns), top, cell);
    let legend = "NV#: NVLinks   PIX: one switch   PXB: several switches   PHB: the host bridge   NODE: one NUMA node   SYS: between nodes   ?: assumed";
    canvas.text(MARGIN, bottom + LINE_HEIGHT, TextForm::SMALL, legend);
}

/// Returns the shade of the cell of a path, 0 for the shortest path.
fn share_of(path: PathType) -> f64 {
    match path {
        PathType::Sys => 1.0,
        PathType::Node => 0.75,
        PathType::Phb => 0.5,
        PathType::Pxb => 0.3,
        PathType::Pix => 0.15,
        _ => 0.0,
    }
}

/// Returns the opacity of the colour of a cell.
fn shade(share: f64) -> f64 {
    0.04 + 0.5 * share
}

/// Draws a table with the names of its rows and columns. `cell` returns the text and the opacity of
/// the colour of a cell. Returns the lower edge.
fn table(
    canvas: &mut Canvas,
    title: &str,
    rows: &[String],
    columns: &[String],
    top: f64,
    cell: impl Fn(usize, usize) -> (String, f64),
) -> f64 {
    canvas.text(MARGIN, top + 12.0, TextForm::HEAD, title);
    let form = TextForm::BODY;
    let width = columns.iter().map(|name| form.width(name) + 16.0).fold(CELL.0, f64::max);
    let first = rows.iter().map(|name| form.width(name) + 12.0).fold(0.0, f64::max);
    let (left, head) = (MARGIN + first, top + 18.0);
    for (column, name) in columns.iter().enumerate() {
        let middle = left + (column as f64 + 0.5) * width;
        canvas.text(middle, head + 14.0, form.middle(), name);
    }
    let begin = head + CELL.1;
    for (row, name) in rows.iter().enumerate() {
        let y = begin + row as f64 * CELL.1;
        canvas.text(MARGIN, y + 14.0, form, name);
        for column in 0..columns.len() {
            let (text, opacity) = cell(row, column);
            let frame = Rect::new(left + column as f64 * width, y, width, CELL.1);
            canvas.rectangle(frame, 0.0, colors::of_node(NodeId(5)), opacity, colors::PAPER);
            canvas.text(frame.x + width / 2.0, y + 14.0, form.middle(), &text);
        }
    }
    begin + rows.len() as f64 * CELL.1
}
