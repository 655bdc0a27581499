//! Reads the GPUs and display controllers of a tree.

use crate::io_device::{DeviceKind, IoDevice};
use crate::nvml_report::{NvmlGpu, NvmlReport};
use crate::pci_address::PciAddress;
use crate::pci_location::PciLocation;
use crate::tree::TreeReader;

pub(crate) const FUNCTIONS: &str = "sys/bus/pci/devices";

/// The GPUs that NVIDIA's driver drives.
pub(crate) const NVIDIA_GPUS: &str = "proc/driver/nvidia/gpus";

pub(crate) const NVIDIA: u16 = 0x10de;
const AMD: u16 = 0x1002;
const INTEL: u16 = 0x8086;

/// The base classes of PCI.
const DISPLAY_CONTROLLER: u32 = 0x03;
const PROCESSING_ACCELERATOR: u32 = 0x12;

/// Returns the GPUs and display controllers with the real paths of their functions.
pub(crate) fn gpus(reader: &TreeReader, report: Option<&NvmlReport>) -> Vec<(IoDevice, Option<String>)> {
    let mut found = Vec::new();
    for name in reader.names(FUNCTIONS) {
        let Ok(address) = name.parse::<PciAddress>() else { continue };
        let (Some(class), vendor) = class_and_vendor(reader, &name) else { continue };
        if ![DISPLAY_CONTROLLER, PROCESSING_ACCELERATOR].contains(&class) {
            continue;
        }
        let driven = reader.exists(&format!("{NVIDIA_GPUS}/{name}")).then_some(NVIDIA);
        let vendor = vendor.and_then(|vendor| u16::try_from(vendor).ok()).or(driven);
        let kind = match (class, vendor) {
            (_, Some(NVIDIA | AMD)) | (DISPLAY_CONTROLLER, Some(INTEL)) => DeviceKind::Gpu,
            (DISPLAY_CONTROLLER, _) => DeviceKind::Display,
            _ => continue,
        };
        let path = reader.resolve(&format!("{FUNCTIONS}/{name}"));
        let location = path.as_deref().map(PciLocation::from_path).unwrap_or_default();
        let mut device = IoDevice::new(kind, name.clone(), location);
        device.address = Some(address);
        device.vendor = vendor;
        device.os_names = reader.names(&format!("{FUNCTIONS}/{name}/drm"));
        if let Some(card) = device.os_names.iter().find(|name| name.starts_with("card")) {
            device.name = card.clone();
        }
        found.push((device, path));
    }
    if let Some(report) = report {
        report.gpus.iter().for_each(|gpu| add_report(&mut found, gpu));
        // The driver reports all GPUs that this process may use.
        let unreported =
            |device: &&mut IoDevice| device.vendor == Some(NVIDIA) && device.nvml_index.is_none();
        found
            .iter_mut()
            .map(|(device, _)| device)
            .filter(unreported)
            .for_each(|device| device.usable = false);
    }
    found
}

/// Returns true if the PCI function `name` is a GPU of NVIDIA by its class and vendor.
pub(crate) fn is_nvidia_gpu(reader: &TreeReader, name: &str) -> bool {
    let (class, vendor) = class_and_vendor(reader, name);
    vendor == Some(NVIDIA.into())
        && class.is_some_and(|class| [DISPLAY_CONTROLLER, PROCESSING_ACCELERATOR].contains(&class))
}

/// Returns the base class and the vendor of a PCI function.
fn class_and_vendor(reader: &TreeReader, name: &str) -> (Option<u32>, Option<u32>) {
    let hex = |file: &str| {
        let text = reader.text(&format!("{FUNCTIONS}/{name}/{file}"))?;
        u32::from_str_radix(text.strip_prefix("0x")?, 16).ok()
    };
    (hex("class").map(|class| class >> 16), hex("vendor"))
}

/// Adds what NVML reports of a GPU. A container may hide the function in `/sys`.
fn add_report(found: &mut Vec<(IoDevice, Option<String>)>, gpu: &NvmlGpu) {
    let position = found.iter().position(|(device, _)| device.address == Some(gpu.address));
    let position = position.unwrap_or_else(|| {
        let mut device = IoDevice::new(DeviceKind::Gpu, String::new(), PciLocation::default());
        (device.address, device.vendor) = (Some(gpu.address), Some(NVIDIA));
        found.push((device, None));
        found.len() - 1
    });
    let device = &mut found[position].0;
    device.kind = DeviceKind::Gpu;
    device.name = format!("GPU{}", gpu.index);
    device.nvml_index = Some(gpu.index);
    device.uuid = gpu.uuid.clone();
    device.model = gpu.model.clone();
    device.mig_uuids = gpu.mig_uuids.clone();
}
