//! The variables by which a rank learns what is near: its NUMA node, a GPU and a network card.

use hostbuf_topology::{CpuSet, CudaVariables, DeviceIndex, DeviceKind, Topology, VisibleGpu};

use super::rank_binding::round_robin;

/// The variable with the number of the node that has all CPUs on which the rank may run.
pub(super) const NUMA_NODE: &str = "HOSTBUF_NUMA_NODE";
/// The variable with the UUID or the PCI address of a GPU.
pub(super) const NEAR_GPU: &str = "HOSTBUF_NEAR_GPU";
/// The variable with the name of an RDMA device or of a network interface.
pub(super) const NEAR_NIC: &str = "HOSTBUF_NEAR_NIC";

/// The devices near a rank, as the values of its variables.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct NearDevices {
    node: Option<String>,
    gpu: Option<String>,
    nic: Option<String>,
}

impl NearDevices {
    /// Finds the devices near a rank on `cpus`. Of several equally near ones it takes the one at
    /// its `device_rank`, round-robin. `gpu` is the GPU of the rank if that is decided already.
    pub(super) fn find(
        topology: &Topology,
        cpus: &CpuSet,
        variables: &CudaVariables,
        device_rank: u64,
        gpu: Option<VisibleGpu>,
    ) -> NearDevices {
        let nearest = || topology.nearest_visible_to_cpus(cpus, variables);
        let gpu = gpu.or_else(|| round_robin(&nearest(), device_rank).cloned());
        let nics = match &gpu {
            Some(gpu) => topology.nearest(gpu.device, DeviceKind::Nic),
            None => topology.nearest_to_cpus(cpus, DeviceKind::Nic),
        };
        NearDevices {
            node: topology.node_of(cpus).map(|node| node.to_string()),
            gpu: gpu.map(|gpu| gpu_name(topology, &gpu)),
            nic: nic_name(topology, nics, device_rank),
        }
    }

    /// Returns the variables with their values, which are `None` for those that must not be set: an
    /// enclosing job may have set its own.
    pub(super) fn variables(self) -> [(&'static str, Option<String>); 3] {
        [(NUMA_NODE, self.node), (NEAR_GPU, self.gpu), (NEAR_NIC, self.nic)]
    }
}

/// Returns the name by which CUDA_VISIBLE_DEVICES selects a GPU, or its PCI address without NVML.
fn gpu_name(topology: &Topology, gpu: &VisibleGpu) -> String {
    let device = topology.device(gpu.device);
    let address = || device.pci_address().map_or(device.name().to_owned(), |address| address.to_string());
    gpu.mig.clone().or_else(|| device.uuid().map(str::to_owned)).unwrap_or_else(address)
}

/// Returns the name of the network card of a rank, out of equally near ones. A host often has an
/// Ethernet card for its management, so cards with RDMA precede others.
fn nic_name(topology: &Topology, mut nics: Vec<DeviceIndex>, device_rank: u64) -> Option<String> {
    nics.retain(|&nic| topology.device(nic).is_usable());
    let has_rdma = |nic: &DeviceIndex| !topology.device(*nic).rdma_devices().is_empty();
    if nics.iter().any(has_rdma) {
        nics.retain(has_rdma);
    }
    round_robin(&nics, device_rank).map(|&nic| topology.device(nic).name().to_owned())
}

#[cfg(test)]
mod tests {
    use super::super::recorded_host;
    use super::*;

    fn near(topology: &Topology, cpus: &str, list: Option<&str>, device_rank: u64) -> [String; 3] {
        let variables = list.map_or(CudaVariables::new(), |list| CudaVariables::new().visible_devices(list));
        let cpus = cpus.parse().unwrap();
        let found = NearDevices::find(topology, &cpus, &variables, device_rank, None);
        assert_eq!(found.node.is_some(), topology.node_of(&cpus).is_some());
        found.variables().map(|(_, value)| value.unwrap_or_else(|| "-".into()))
    }

    #[test]
    fn a_rank_learns_its_node_and_takes_near_devices_round_robin() {
        let topology = recorded_host::topology("devices", None);
        for (cpus, list, device_rank, expected) in [
            ("0-3", None, 0, ["0", "GPU-0", "mlx5_0"]),
            ("2", None, 1, ["0", "GPU-1", "mlx5_0"]),
            ("0-3", None, 6, ["0", "GPU-0", "mlx5_0"]),
            ("4-7", None, 5, ["1", "GPU-3", "eth1"]),
            // CPUs of both nodes are near all GPUs, and the card is near the GPU.
            ("0-7", None, 3, ["-", "GPU-3", "eth1"]),
            ("0-7", None, 4, ["-", "GPU-0", "mlx5_0"]),
            // Only GPUs that CUDA shows count, also if they are farther away.
            ("0-3", Some("GPU-1"), 0, ["0", "GPU-1", "mlx5_0"]),
            ("0-3", Some("GPU-3,GPU-2"), 0, ["0", "GPU-3", "eth1"]),
            ("0-3", Some(""), 0, ["0", "-", "mlx5_0"]),
            ("4", Some("-1"), 1, ["1", "-", "eth1"]),
        ] {
            assert_eq!(near(&topology, cpus, list, device_rank), expected, "{cpus} {list:?} {device_rank}");
        }
    }

    #[test]
    fn a_gpu_without_nvml_has_its_address_and_a_mig_device_its_name() {
        let topology = recorded_host::topology("names", None);
        let device = topology.find("GPU0").unwrap().index();
        let mut gpu = topology.visible(&CudaVariables::new()).gpus.remove(0);
        assert_eq!((gpu.device, gpu_name(&topology, &gpu).as_str()), (device, "GPU-0"));
        gpu.mig = Some("MIG-7".into());
        assert_eq!(gpu_name(&topology, &gpu), "MIG-7");
        let mut card = topology.visible(&CudaVariables::new()).gpus.remove(0);
        card.device = topology.find("eth1").unwrap().index();
        assert_eq!(gpu_name(&topology, &card), "0000:b0:00.0");
    }
}
