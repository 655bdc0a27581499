//! The topology of a host.

use std::collections::BTreeMap;

use crate::assumption::Assumption;
use crate::cpu_set::CpuSet;
use crate::io_device::{DeviceIndex, DeviceKind, IoDevice};
use crate::numa_node::{NodeId, NumaNode};
use crate::path_type::{DevicePath, PathType};
use crate::read_storage::drives_below;
use crate::visible_gpus::{CudaVariables, VisibleGpu, VisibleGpus, visible_gpus};

/// The NUMA nodes and devices of a host, as they were when it was read.
///
/// [`discover`](Topology::discover) reads this host, and [`recorded`](Topology::recorded) a tree of
/// files that was recorded on another. Neither fails for lack of a fact: it is assumed, and
/// [`assumptions`](Topology::assumptions) lists it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Topology {
    pub(crate) nodes: Vec<NumaNode>,
    pub(crate) devices: Vec<IoDevice>,
    /// The number of NVLinks between two GPUs, the first with the smaller index.
    pub(crate) links: BTreeMap<(DeviceIndex, DeviceIndex), u32>,
    /// The block devices below each partition, volume or array, by name.
    pub(crate) below: BTreeMap<String, Vec<String>>,
    pub(crate) assumptions: Vec<Assumption>,
}

impl Topology {
    /// Returns the NUMA nodes in the order of their numbers. There is at least one.
    #[must_use]
    pub fn nodes(&self) -> &[NumaNode] {
        &self.nodes
    }

    /// Returns the node with the number `id`.
    #[must_use]
    pub fn node(&self, id: NodeId) -> Option<&NumaNode> {
        self.nodes.iter().find(|node| node.id == id)
    }

    /// Returns the devices: GPUs, then network cards, drives and display controllers, each kind in
    /// the order of PCI addresses.
    #[must_use]
    pub fn devices(&self) -> &[IoDevice] {
        &self.devices
    }

    /// Returns the devices of one kind.
    pub fn devices_of(&self, kind: DeviceKind) -> impl Iterator<Item = &IoDevice> {
        self.devices.iter().filter(move |device| device.kind == kind)
    }

    /// Returns the device at `index`.
    ///
    /// # Panics
    /// If `index` comes from a topology with more devices.
    #[must_use]
    pub fn device(&self, index: DeviceIndex) -> &IoDevice {
        &self.devices[index.0]
    }

    /// Returns the device that `name` names: by its name, by a name of the kernel, by its PCI
    /// address or by the UUID of a GPU.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<&IoDevice> {
        let address = name.parse().ok();
        self.devices.iter().find(|device| {
            device.name == name
                || device.uuid.as_deref() == Some(name)
                || device.os_names.iter().any(|os_name| os_name == name)
                || (address.is_some() && device.address == address)
        })
    }

    /// Returns the drives that the block device `name` is on, by following partitions, volumes of
    /// the device mapper and arrays. A drive is on itself.
    #[must_use]
    pub fn drives_of(&self, name: &str) -> Vec<DeviceIndex> {
        let names = drives_below(&self.below, name);
        let drives = self.devices_of(DeviceKind::Storage).filter(|drive| names.contains(&drive.name));
        drives.map(IoDevice::index).collect()
    }

    /// Returns the facts that neither the kernel nor a driver states.
    #[must_use]
    pub fn assumptions(&self) -> &[Assumption] {
        &self.assumptions
    }

    /// Returns the path between two devices.
    ///
    /// # Panics
    /// If an index comes from a topology with more devices.
    #[must_use]
    pub fn path(&self, a: DeviceIndex, b: DeviceIndex) -> DevicePath {
        match self.links.get(&(a.min(b), a.max(b))) {
            Some(&count) => DevicePath { path_type: PathType::NvLink(count), assumed: false },
            None => self.pci_path(a, b),
        }
    }

    /// Returns the path between two devices without NVLinks.
    ///
    /// # Panics
    /// If an index comes from a topology with more devices.
    #[must_use]
    pub fn pci_path(&self, a: DeviceIndex, b: DeviceIndex) -> DevicePath {
        let (a, b) = (self.device(a), self.device(b));
        if a.index == b.index {
            return DevicePath { path_type: PathType::Same, assumed: false };
        }
        if let Some(path_type) = a.location.path_type(&b.location) {
            return DevicePath { path_type, assumed: false };
        }
        // Devices whose locations are unknown may have a closer path than their nodes show.
        let assumed = a.node_assumed || b.node_assumed || !a.located || !b.located;
        let path_type = if a.node.is_some() && a.node == b.node { PathType::Node } else { PathType::Sys };
        DevicePath { path_type, assumed }
    }

    /// Returns the path between a device and the memory of a node: [`PathType::Node`] if the device
    /// is next to the node, and otherwise [`PathType::Sys`].
    ///
    /// # Panics
    /// If `device` comes from a topology with more devices.
    #[must_use]
    pub fn path_to_node(&self, device: DeviceIndex, node: NodeId) -> DevicePath {
        let device = self.device(device);
        let path_type = if device.node == Some(node) { PathType::Node } else { PathType::Sys };
        DevicePath { path_type, assumed: device.node_assumed }
    }

    /// Returns the devices of a kind with the closest path to `device`, which is not among them.
    /// Devices that cannot be used count only if no device of the kind can be used.
    ///
    /// # Panics
    /// If `device` comes from a topology with more devices.
    #[must_use]
    pub fn nearest(&self, device: DeviceIndex, kind: DeviceKind) -> Vec<DeviceIndex> {
        self.closest(kind, |other| (other.index != device).then(|| self.path(device, other.index).path_type))
    }

    /// Returns the devices of a kind that are closest to a set of CPUs: those of the CPUs' nodes,
    /// otherwise those at the smallest distance of nodes, and otherwise those of unknown nodes.
    /// Devices that cannot be used count only if no device of the kind can be used.
    #[must_use]
    pub fn nearest_to_cpus(&self, cpus: &CpuSet, kind: DeviceKind) -> Vec<DeviceIndex> {
        let nodes = self.nodes_of(cpus);
        self.closest(kind, |device| Some(self.distance_to(&nodes, device)))
    }

    /// Returns the GPUs of [`visible`](Topology::visible) that are closest to a set of CPUs, by the
    /// order of [`nearest_to_cpus`](Topology::nearest_to_cpus).
    #[must_use]
    pub fn nearest_visible_to_cpus(&self, cpus: &CpuSet, variables: &CudaVariables) -> Vec<VisibleGpu> {
        let nodes = self.nodes_of(cpus);
        let distance = |gpu: &VisibleGpu| self.distance_to(&nodes, self.device(gpu.device));
        let mut gpus = self.visible(variables).gpus;
        let least = gpus.iter().map(distance).min();
        gpus.retain(|gpu| Some(distance(gpu)) == least);
        gpus
    }

    /// Returns the smallest distance of a device from one of `nodes`, or the largest number if it
    /// is unknown.
    fn distance_to(&self, nodes: &[NodeId], device: &IoDevice) -> u32 {
        let distances = nodes.iter().filter_map(|&from| self.distance(from, device.node?));
        distances.min().unwrap_or(u32::MAX)
    }

    /// Returns the distance between two nodes. If the firmware states none, it is that of Linux: 10
    /// within a node and 20 to another.
    fn distance(&self, from: NodeId, to: NodeId) -> Option<u32> {
        let stated = self.node(from)?.distance(to);
        Some(stated.unwrap_or(if from == to { 10 } else { 20 }))
    }

    /// Returns the devices of a kind with the smallest key. A device without a key is left out.
    fn closest<K: Ord>(&self, kind: DeviceKind, key: impl Fn(&IoDevice) -> Option<K>) -> Vec<DeviceIndex> {
        let keyed = |usable: bool| {
            let devices = self.devices_of(kind).filter(move |device| device.usable || !usable);
            devices.filter_map(|device| Some((key(device)?, device.index))).collect::<Vec<_>>()
        };
        let mut found = keyed(true);
        if found.is_empty() {
            found = keyed(false);
        }
        // The sort is stable, so equally close devices stay in their order.
        found.sort_by(|(a, _), (b, _)| a.cmp(b));
        let count = found.iter().take_while(|(key, _)| *key == found[0].0).count();
        found.into_iter().take(count).map(|(_, index)| index).collect()
    }

    /// Returns the online CPUs of all nodes.
    #[must_use]
    pub fn cpus(&self) -> CpuSet {
        self.nodes.iter().fold(CpuSet::new(), |all, node| all.union(&node.cpus))
    }

    /// Returns the node that has all of `cpus` that are online, or `None` if they are on several
    /// nodes or on none. The affinity of a process may contain CPUs that are offline.
    #[must_use]
    pub fn node_of(&self, cpus: &CpuSet) -> Option<NodeId> {
        let cpus = &cpus.intersection(&self.cpus());
        let mut nodes = self.nodes.iter().filter(|node| !cpus.is_empty() && cpus.is_subset(&node.cpus));
        nodes.next().map(NumaNode::id)
    }

    /// Returns the nodes that have one of `cpus`.
    #[must_use]
    pub fn nodes_of(&self, cpus: &CpuSet) -> Vec<NodeId> {
        let has_one = |node: &&NumaNode| !node.cpus.intersection(cpus).is_empty();
        self.nodes.iter().filter(has_one).map(NumaNode::id).collect()
    }

    /// Returns the GPUs that a process with these variables sees.
    #[must_use]
    pub fn visible(&self, variables: &CudaVariables) -> VisibleGpus {
        visible_gpus(&self.devices, variables)
    }
}
