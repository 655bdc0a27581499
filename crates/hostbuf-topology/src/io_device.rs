//! Devices.

use crate::numa_node::NodeId;
use crate::pci_address::PciAddress;
use crate::pci_location::PciLocation;

/// The kind of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum DeviceKind {
    /// A GPU that computes.
    Gpu,
    /// A network card: Ethernet, InfiniBand or RDMA.
    Nic,
    /// A drive.
    Storage,
    /// A display controller of a vendor without GPUs that compute, such as that of a management
    /// controller or of a virtual machine.
    Display,
}

impl DeviceKind {
    /// Returns the name of the kind in one word.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            DeviceKind::Gpu => "gpu",
            DeviceKind::Nic => "nic",
            DeviceKind::Storage => "storage",
            DeviceKind::Display => "display",
        }
    }
}

/// The position of a device in [`Topology::devices`](crate::Topology::devices).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
// Exhaustive: a number, and nothing else.
pub struct DeviceIndex(pub usize);

/// A device: a GPU, a network card or a drive. Virtual devices, such as `lo`, `docker0` and
/// `loop0`, are none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IoDevice {
    pub(crate) index: DeviceIndex,
    pub(crate) kind: DeviceKind,
    pub(crate) name: String,
    pub(crate) os_names: Vec<String>,
    pub(crate) address: Option<PciAddress>,
    pub(crate) location: PciLocation,
    /// True if the real path below /sys/devices is known, of a device in PCI or outside.
    pub(crate) located: bool,
    pub(crate) node: Option<NodeId>,
    pub(crate) node_assumed: bool,
    /// The node that the kernel states and that does not exist.
    pub(crate) absent_node: Option<NodeId>,
    pub(crate) usable: bool,
    pub(crate) model: Option<String>,
    pub(crate) vendor: Option<u16>,
    pub(crate) uuid: Option<String>,
    pub(crate) nvml_index: Option<u32>,
    pub(crate) mig_uuids: Vec<String>,
    pub(crate) interfaces: Vec<String>,
    pub(crate) rdma: Vec<String>,
    pub(crate) verbs_nodes: Vec<String>,
}

impl IoDevice {
    pub(crate) fn new(kind: DeviceKind, name: String, location: PciLocation) -> IoDevice {
        IoDevice {
            index: DeviceIndex(0),
            kind,
            name,
            os_names: Vec::new(),
            address: location.function(),
            location,
            located: false,
            node: None,
            node_assumed: true,
            absent_node: None,
            usable: true,
            model: None,
            vendor: None,
            uuid: None,
            nvml_index: None,
            mig_uuids: Vec::new(),
            interfaces: Vec::new(),
            rdma: Vec::new(),
            verbs_nodes: Vec::new(),
        }
    }

    /// Returns the position of the device in its topology.
    #[must_use]
    pub fn index(&self) -> DeviceIndex {
        self.index
    }

    /// Returns the kind.
    #[must_use]
    pub fn kind(&self) -> DeviceKind {
        self.kind
    }

    /// Returns the name for users: `GPU0` by its number in NVML, `mlx5_0` for a network card with
    /// RDMA and otherwise `eth0`, `nvme0n1` for a drive. A GPU that NVML does not report has the
    /// name of its display device, or its PCI address.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the kernel's names of the device, such as `eth0` and `mlx5_0` for one card.
    #[must_use]
    pub fn os_names(&self) -> &[String] {
        &self.os_names
    }

    /// Returns the PCI address of the device, or of the controller that the device is behind.
    #[must_use]
    pub fn pci_address(&self) -> Option<PciAddress> {
        self.address
    }

    /// Returns the PCI bridges above the device, the nearest last. They are empty for a device on
    /// the root bus, and for one whose location in the PCI tree is unknown.
    #[must_use]
    pub fn pci_parents(&self) -> Vec<PciAddress> {
        self.location.parents()
    }

    /// Returns the NUMA node next to the device, or `None` if it is unknown.
    #[must_use]
    pub fn node(&self) -> Option<NodeId> {
        self.node
    }

    /// Returns true if neither the kernel nor a driver states a node that exists. The node is then
    /// that of a host with one node, or unknown.
    #[must_use]
    pub fn node_is_assumed(&self) -> bool {
        self.node_assumed
    }

    /// Returns true if the device can be used: a GPU that its driver reports, a network card with
    /// an active port (and a verbs node if it has RDMA), a drive that is not empty.
    #[must_use]
    pub fn is_usable(&self) -> bool {
        self.usable
    }

    /// Returns the model of a GPU.
    #[must_use]
    pub fn model(&self) -> Option<&str> {
        self.model.as_deref()
    }

    /// Returns the PCI vendor of a GPU or display controller: 0x10de is NVIDIA.
    #[must_use]
    pub fn vendor(&self) -> Option<u16> {
        self.vendor
    }

    /// Returns the UUID of a GPU, as `nvidia-smi -L` prints it.
    #[must_use]
    pub fn uuid(&self) -> Option<&str> {
        self.uuid.as_deref()
    }

    /// Returns the number of a GPU in NVML, which is that of `nvidia-smi`.
    #[must_use]
    pub fn nvml_index(&self) -> Option<u32> {
        self.nvml_index
    }

    /// Returns the UUIDs of a GPU's MIG devices.
    #[must_use]
    pub fn mig_uuids(&self) -> &[String] {
        &self.mig_uuids
    }

    /// Returns the network interfaces of a card.
    #[must_use]
    pub fn interfaces(&self) -> &[String] {
        &self.interfaces
    }

    /// Returns the RDMA devices of a card.
    #[must_use]
    pub fn rdma_devices(&self) -> &[String] {
        &self.rdma
    }

    /// Returns the names in `/dev/infiniband` by which programs open the RDMA devices of a card.
    #[must_use]
    pub fn verbs_nodes(&self) -> &[String] {
        &self.verbs_nodes
    }
}
