//! The topology of a host: NUMA nodes, GPUs, network cards and drives, and the paths between them.
//!
//! [`Topology::discover`] reads this host from `/sys`, `/proc` and NVML, and never initialises
//! CUDA. [`Topology::recorded`] reads a tree of files that was recorded on another host. Both
//! always answer: in a container, without NVML or with devices whose NUMA node is -1, the missing
//! facts are assumed, and marked so.

mod assumption;
mod cpu_set;
mod discovery;
mod disk_tree;
#[cfg(fuzzing)]
pub mod fuzzing;
mod gpu_nodes;
mod io_device;
#[cfg(any(test, fuzzing))]
mod memory_tree;
mod numa_node;
#[cfg(feature = "nvml")]
mod nvml;
#[cfg(not(feature = "nvml"))]
mod nvml {
    use crate::nvml_report::{NvmlQuestions, NvmlReport};

    /// Returns the reason why there is no report.
    pub(crate) fn report(_: NvmlQuestions) -> Result<NvmlReport, String> {
        Err("this program was built without NVML".into())
    }
}
mod nvml_report;
mod path_type;
mod pci_address;
mod pci_location;
mod read_gpus;
mod read_nics;
mod read_nodes;
mod read_storage;
mod recorded_error;
mod recording_tree;
#[cfg(test)]
mod tests;
mod topology;
mod tree;
mod visible_gpus;

pub use assumption::Assumption;
pub use cpu_set::{CpuListError, CpuSet};
pub use io_device::{DeviceIndex, DeviceKind, IoDevice};
pub use numa_node::{MemoryPerformance, NodeHugePages, NodeId, NumaNode};
pub use path_type::{DevicePath, PathType};
pub use pci_address::{PciAddress, PciAddressError};
pub use recorded_error::RecordedError;
pub use topology::Topology;
pub use visible_gpus::{CudaVariables, VisibleGpu, VisibleGpus};

/// Compiles and runs the examples of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
