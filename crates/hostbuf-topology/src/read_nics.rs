//! Reads the network cards of a tree.

use crate::io_device::{DeviceKind, IoDevice};
use crate::pci_location::PciLocation;
use crate::tree::TreeReader;

const INTERFACES: &str = "sys/class/net";
const RDMA_DEVICES: &str = "sys/class/infiniband";
const VERBS_NODES: &str = "sys/class/infiniband_verbs";

/// A network card while its interfaces and RDMA devices are collected.
struct Card {
    /// The real path of the card's device.
    path: String,
    device: IoDevice,
    has_active_interface: bool,
    has_active_rdma: bool,
}

/// Returns the network cards with the real paths of their devices. The interfaces and RDMA devices
/// of one PCI function are one card.
pub(crate) fn nics(reader: &TreeReader) -> Vec<(IoDevice, Option<String>)> {
    let mut cards: Vec<Card> = Vec::new();
    for name in reader.names(INTERFACES) {
        let path = format!("{INTERFACES}/{name}");
        let Some(parent) = parent(reader, &path, "/net/") else { continue };
        let card = card(&mut cards, parent);
        card.device.interfaces.push(name);
        card.has_active_interface |= is_up(reader, &path);
    }
    for name in reader.names(RDMA_DEVICES) {
        let path = format!("{RDMA_DEVICES}/{name}");
        let Some(parent) = parent(reader, &path, "/infiniband/") else { continue };
        let nodes = verbs_nodes(reader, &name);
        let card = card(&mut cards, parent);
        card.has_active_rdma |= !nodes.is_empty() && has_active_port(reader, &path);
        card.device.rdma.push(name);
        card.device.verbs_nodes.extend(nodes);
    }
    cards.into_iter().map(|card| (finish(&card), Some(card.path))).collect()
}

fn finish(card: &Card) -> IoDevice {
    let mut device = card.device.clone();
    device.os_names = device.rdma.iter().chain(&device.interfaces).cloned().collect();
    device.name = device.os_names.first().cloned().unwrap_or_default();
    device.usable = if device.rdma.is_empty() { card.has_active_interface } else { card.has_active_rdma };
    device
}

/// Returns the real path of the device of an entry of a class, or `None` for a virtual device. A
/// network interface of a virtio card, for instance, is two folders below its PCI function.
fn parent(reader: &TreeReader, path: &str, class: &str) -> Option<String> {
    let real = reader.resolve(path)?;
    if real.starts_with("sys/devices/virtual/") {
        return None;
    }
    match real.rfind(class).filter(|_| real.starts_with("sys/devices/")) {
        Some(end) => Some(real[..end].to_owned()),
        // Kernels before 2.6.20 had a folder in the class, with a link to the device.
        None => reader.resolve(&format!("{path}/device")),
    }
}

/// Returns the card with the PCI function of the device at `path`, or with this path if it is
/// outside PCI.
fn card(cards: &mut Vec<Card>, path: String) -> &mut Card {
    let location = PciLocation::from_path(&path);
    let is_same = |card: &Card| match location.function() {
        Some(_) => card.device.location == location,
        None => card.path == path,
    };
    let position = cards.iter().position(is_same).unwrap_or_else(|| {
        let device = IoDevice::new(DeviceKind::Nic, String::new(), location);
        cards.push(Card { path, device, has_active_interface: false, has_active_rdma: false });
        cards.len() - 1
    });
    &mut cards[position]
}

/// Returns true if an interface is up, or has a carrier and a driver that reports no state.
fn is_up(reader: &TreeReader, path: &str) -> bool {
    match reader.text(&format!("{path}/operstate")).as_deref() {
        Some("up") => true,
        Some("unknown") | None => reader.text(&format!("{path}/carrier")).as_deref() == Some("1"),
        Some(_) => false,
    }
}

/// Returns true if a port of an RDMA device is active: `4: ACTIVE`.
fn has_active_port(reader: &TreeReader, path: &str) -> bool {
    let ports = format!("{path}/ports");
    let is_active = |port: &String| {
        reader.text(&format!("{ports}/{port}/state")).is_some_and(|state| state.starts_with("4:"))
    };
    reader.names(&ports).iter().any(is_active)
}

/// Returns the names in `/dev/infiniband` of an RDMA device.
fn verbs_nodes(reader: &TreeReader, rdma: &str) -> Vec<String> {
    let of_device =
        |node: &String| reader.text(&format!("{VERBS_NODES}/{node}/ibdev")).as_deref() == Some(rdma);
    reader.names(VERBS_NODES).into_iter().filter(of_device).collect()
}
