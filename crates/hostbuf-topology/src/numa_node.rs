//! NUMA nodes.

use crate::cpu_set::CpuSet;
use crate::pci_address::PciAddress;
pub use hostbuf_os::NodeId;

/// The huge pages of one size in the pool of one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodeHugePages {
    /// The size of a page in bytes.
    pub size: u64,
    /// The number of pages in the pool.
    pub total: u64,
    /// The number of free pages.
    pub free: u64,
}

/// The performance of a node's memory as its nearest CPUs see it, from the firmware's table (ACPI
/// HMAT). The kernel shows no other pair of nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryPerformance {
    /// The nodes whose CPUs these figures hold for.
    pub initiators: Vec<NodeId>,
    /// The bandwidth of reads in MiB/s.
    pub read_bandwidth: Option<u64>,
    /// The bandwidth of writes in MiB/s.
    pub write_bandwidth: Option<u64>,
    /// The latency of reads in nanoseconds.
    pub read_latency: Option<u64>,
    /// The latency of writes in nanoseconds.
    pub write_latency: Option<u64>,
}

/// A NUMA node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NumaNode {
    pub(crate) id: NodeId,
    pub(crate) cpus: CpuSet,
    pub(crate) memory: Option<u64>,
    pub(crate) free: Option<u64>,
    pub(crate) available: Option<u64>,
    pub(crate) distances: Vec<(NodeId, u32)>,
    pub(crate) huge_pages: Vec<NodeHugePages>,
    pub(crate) performance: Option<MemoryPerformance>,
    pub(crate) gpu: Option<PciAddress>,
    pub(crate) gpu_assumed: bool,
    pub(crate) assumed: bool,
}

impl NumaNode {
    /// Returns the node's number.
    #[must_use]
    pub fn id(&self) -> NodeId {
        self.id
    }

    /// Returns the online CPUs of the node.
    #[must_use]
    pub fn cpus(&self) -> &CpuSet {
        &self.cpus
    }

    /// Returns the size of the node's memory in bytes, or `None` if it is unknown.
    #[must_use]
    pub fn memory(&self) -> Option<u64> {
        self.memory
    }

    /// Returns the number of bytes of the node that were free when the topology was read, or `None`
    /// if it is unknown. Memory of the page cache is not free.
    #[must_use]
    pub fn free(&self) -> Option<u64> {
        self.free
    }

    /// Returns the number of bytes of the node that could be allocated when the topology was read,
    /// or `None` if it is unknown: the free memory above the kernel's reserves, and most of the
    /// page cache. Placements are checked against it. It is unknown for a rank, and in a recorded
    /// tree without `/proc/zoneinfo` it contains the reserves.
    #[must_use]
    pub fn available(&self) -> Option<u64> {
        self.available
    }

    /// Returns true if the node has CPUs.
    #[must_use]
    pub fn has_cpus(&self) -> bool {
        !self.cpus.is_empty()
    }

    /// Returns true if the node has memory of the host. The memory of a GPU does not count.
    #[must_use]
    pub fn has_memory(&self) -> bool {
        self.memory.is_some_and(|bytes| bytes > 0) && !self.is_gpu_memory()
    }

    /// Returns the distance to another node as the firmware states it (ACPI SLIT), or `None` if it
    /// is unknown. The distance of a node to itself is 10.
    #[must_use]
    pub fn distance(&self, to: NodeId) -> Option<u32> {
        self.distances.iter().find(|(node, _)| *node == to).map(|(_, distance)| *distance)
    }

    /// Returns the distances to all nodes, in the order of their numbers. The list is empty if they
    /// are unknown.
    #[must_use]
    pub fn distances(&self) -> &[(NodeId, u32)] {
        &self.distances
    }

    /// Returns the node's pools of huge pages, by ascending size.
    #[must_use]
    pub fn huge_pages(&self) -> &[NodeHugePages] {
        &self.huge_pages
    }

    /// Returns the performance of the memory for its nearest CPUs, if the firmware states it.
    #[must_use]
    pub fn performance(&self) -> Option<&MemoryPerformance> {
        self.performance.as_ref()
    }

    /// Returns true if the node is the memory of a GPU, as on Grace and POWER9. Such a node is no
    /// place for memory of the host.
    #[must_use]
    pub fn is_gpu_memory(&self) -> bool {
        self.gpu.is_some() || self.gpu_assumed
    }

    /// Returns the GPU whose memory the node is, or `None` if it is not the memory of a GPU or of
    /// an unknown one.
    #[must_use]
    pub fn gpu(&self) -> Option<PciAddress> {
        self.gpu
    }

    /// Returns true if no driver states that the node is the memory of a GPU. It has no CPUs, and
    /// the driver's folder of a GPU in `/proc` is hidden, as in some containers.
    #[must_use]
    pub fn is_gpu_memory_assumed(&self) -> bool {
        self.gpu_assumed
    }

    /// Returns true if the kernel shows no nodes, so that this node stands for the whole host.
    #[must_use]
    pub fn is_assumed(&self) -> bool {
        self.assumed
    }
}
