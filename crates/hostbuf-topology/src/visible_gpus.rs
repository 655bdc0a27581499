//! GPUs that a process sees through CUDA.

use crate::io_device::{DeviceIndex, DeviceKind, IoDevice};
use crate::read_gpus::NVIDIA;

/// The variables by which a user restricts and orders the GPUs of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CudaVariables {
    /// The value of `CUDA_VISIBLE_DEVICES`, or `None` if it is not set.
    pub visible_devices: Option<String>,
    /// The value of `CUDA_DEVICE_ORDER`, or `None` if it is not set.
    pub device_order: Option<String>,
}

impl CudaVariables {
    /// Returns variables that are not set.
    #[must_use]
    pub fn new() -> CudaVariables {
        CudaVariables::default()
    }

    /// Returns the variables of this process. A value that is no UTF-8 names no GPU.
    #[must_use]
    pub fn from_env() -> CudaVariables {
        let value = |name| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned());
        CudaVariables {
            visible_devices: value("CUDA_VISIBLE_DEVICES"),
            device_order: value("CUDA_DEVICE_ORDER"),
        }
    }

    /// Sets `CUDA_VISIBLE_DEVICES`.
    #[must_use]
    pub fn visible_devices(mut self, value: impl Into<String>) -> CudaVariables {
        self.visible_devices = Some(value.into());
        self
    }

    /// Sets `CUDA_DEVICE_ORDER`.
    #[must_use]
    pub fn device_order(mut self, value: impl Into<String>) -> CudaVariables {
        self.device_order = Some(value.into());
        self
    }

    /// Returns true if the variables hide all GPUs of any host: the list begins with an entry that
    /// names none.
    #[must_use]
    pub fn hide_all(&self) -> bool {
        let first = self.visible_devices.as_deref().map(|list| list.split(',').next().unwrap_or(list).trim());
        let names_one = |entry: &str| {
            entry.parse::<usize>().is_ok() || entry.starts_with("GPU-") || entry.starts_with("MIG-")
        };
        first.is_some_and(|entry| !names_one(entry))
    }
}

/// A GPU that a process sees.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct VisibleGpu {
    /// The GPU.
    pub device: DeviceIndex,
    /// The UUID of the GPU's MIG device, if the process sees only that.
    pub mig: Option<String>,
}

/// The GPUs that a process sees, in the order of its device numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct VisibleGpus {
    /// The GPUs.
    pub gpus: Vec<VisibleGpu>,
    /// True if the numbers of the GPUs are assumed to be in the order of their PCI addresses, since
    /// CUDA's default order is by speed, which only CUDA knows; or if a GPU is named twice, which
    /// is assumed to hide all.
    pub assumed: bool,
}

/// Returns the GPUs that a process with these variables sees. CUDA reads the list up to the first
/// entry that names no GPU. NVIDIA documents no meaning of a GPU that is named twice.
pub(crate) fn visible_gpus(devices: &[IoDevice], variables: &CudaVariables) -> VisibleGpus {
    let is_cuda =
        |device: &&IoDevice| device.kind == DeviceKind::Gpu && device.vendor == Some(NVIDIA) && device.usable;
    let mut gpus: Vec<&IoDevice> = devices.iter().filter(is_cuda).collect();
    gpus.sort_by_key(|gpu| (gpu.nvml_index, gpu.address));
    let is_pci_order = variables.device_order.as_deref() == Some("PCI_BUS_ID");
    let numbers_assumed = !is_pci_order && gpus.len() > 1;
    let whole = |gpu: &IoDevice| VisibleGpu { device: gpu.index, mig: None };
    let Some(list) = &variables.visible_devices else {
        return VisibleGpus { gpus: gpus.into_iter().map(whole).collect(), assumed: numbers_assumed };
    };
    let mut found = VisibleGpus::default();
    for entry in list.split(',').map(str::trim) {
        let (gpu, is_number) = match entry.parse::<usize>() {
            Ok(number) => (gpus.get(number).map(|gpu| whole(gpu)), true),
            Err(_) => (by_uuid(&gpus, entry), false),
        };
        let Some(gpu) = gpu else { break };
        if found.gpus.contains(&gpu) {
            return VisibleGpus { gpus: Vec::new(), assumed: true };
        }
        found.assumed |= is_number && numbers_assumed;
        found.gpus.push(gpu);
    }
    found
}

/// Returns the one GPU or MIG device whose UUID begins with `entry`.
fn by_uuid(gpus: &[&IoDevice], entry: &str) -> Option<VisibleGpu> {
    let has_prefix =
        |uuid: &str| uuid.get(..entry.len()).is_some_and(|start| start.eq_ignore_ascii_case(entry));
    let one = |mut found: Vec<VisibleGpu>| found.pop().filter(|_| found.is_empty());
    if entry.starts_with("GPU-") {
        let named = gpus.iter().filter(|gpu| gpu.uuid.as_deref().is_some_and(has_prefix));
        return one(named.map(|gpu| VisibleGpu { device: gpu.index, mig: None }).collect());
    }
    // Drivers before 470 named MIG devices by their GPU: MIG-GPU-<UUID>/<instance>/<instance>.
    if let Some(old) = entry.strip_prefix("MIG-GPU-") {
        let uuid = format!("GPU-{}", old.split('/').next().unwrap_or_default());
        let gpu = gpus.iter().find(|gpu| gpu.uuid.as_deref() == Some(&uuid))?;
        return Some(VisibleGpu { device: gpu.index, mig: Some(entry.to_owned()) });
    }
    if !entry.starts_with("MIG-") {
        return None;
    }
    let of_gpu = |gpu: &&IoDevice| {
        let device = gpu.index;
        let mig = gpu.mig_uuids.iter().filter(|uuid| has_prefix(uuid)).cloned();
        mig.map(move |mig| VisibleGpu { device, mig: Some(mig) }).collect::<Vec<_>>()
    };
    one(gpus.iter().flat_map(of_gpu).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pci_location::PciLocation;

    fn gpu(index: usize, uuid: &str, mig: &[&str]) -> IoDevice {
        let mut gpu = IoDevice::new(DeviceKind::Gpu, format!("GPU{index}"), PciLocation::default());
        (gpu.index, gpu.nvml_index, gpu.vendor) = (DeviceIndex(index), Some(index as u32), Some(NVIDIA));
        gpu.uuid = Some(uuid.into());
        gpu.mig_uuids = mig.iter().map(|mig| (*mig).to_owned()).collect();
        gpu
    }

    /// Returns the visible GPUs as text, such as `1 0/MIG-a ?`.
    fn visible(list: Option<&str>, order: Option<&str>) -> String {
        let mut amd = gpu(4, "x", &[]);
        amd.vendor = Some(0x1002);
        let devices =
            [gpu(0, "GPU-aa01", &["MIG-c0", "MIG-c1"]), gpu(1, "GPU-aa02", &[]), gpu(2, "GPU-b", &[]), amd];
        let mut variables = CudaVariables::new();
        variables.visible_devices = list.map(Into::into);
        variables.device_order = order.map(Into::into);
        let found = visible_gpus(&devices, &variables);
        let name = |gpu: &VisibleGpu| match &gpu.mig {
            Some(mig) => format!("{}/{mig}", gpu.device.0),
            None => gpu.device.0.to_string(),
        };
        let mut names: Vec<String> = found.gpus.iter().map(name).collect();
        names.extend(found.assumed.then(|| "?".to_owned()));
        names.join(" ")
    }

    #[test]
    fn the_list_is_read_as_cuda_reads_it() {
        let pci = Some("PCI_BUS_ID");
        for (list, order, expected) in [
            (None, None, "0 1 2 ?"),
            (None, pci, "0 1 2"),
            (Some("2,0"), pci, "2 0"),
            (Some("2,0"), None, "2 0 ?"),
            (Some("2,0"), Some("FASTEST_FIRST"), "2 0 ?"),
            (Some(""), pci, ""),
            (Some("-1"), pci, ""),
            (Some("NoDevFiles"), pci, ""),
            (Some("1,3,0"), pci, "1"),
            (Some("0,-1,1"), pci, "0"),
            (Some("1,1"), pci, "?"),
            (Some("1,GPU-aa02"), pci, "?"),
            (Some("GPU-b,GPU-aa01"), None, "2 0"),
            (Some(" gpu-b"), None, ""),
            (Some("GPU-B , 1"), pci, "2 1"),
            // A prefix of two UUIDs names no GPU.
            (Some("GPU-b,GPU-aa"), None, "2"),
            (Some("MIG-c1"), None, "0/MIG-c1"),
            (Some("MIG-c"), None, ""),
            (Some("MIG-GPU-aa02/1/0"), None, "1/MIG-GPU-aa02/1/0"),
            (Some("é,GPU-é"), None, ""),
        ] {
            assert_eq!(visible(list, order), expected, "{list:?} {order:?}");
            let hidden = list.is_some_and(|list| CudaVariables::new().visible_devices(list).hide_all());
            assert!(!hidden || expected.is_empty(), "{list:?}");
        }
    }

    #[test]
    fn a_first_entry_that_names_no_gpu_hides_all() {
        let hides = |list: &str| CudaVariables::new().visible_devices(list).hide_all();
        assert!(["", "-1", "NoDevFiles", " ,0", "gpu-a"].into_iter().all(hides));
        assert!(!["0", " 1,-1", "GPU-a", "MIG-a"].into_iter().any(hides) && !CudaVariables::new().hide_all());
    }

    #[test]
    fn the_numbers_of_one_gpu_are_certain() {
        let variables = CudaVariables::new().visible_devices("0");
        let found = visible_gpus(&[gpu(0, "GPU-a", &[])], &variables);
        assert_eq!((found.gpus.len(), found.assumed), (1, false));
    }
}
