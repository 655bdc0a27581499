//! The numbers of a host's GPUs.

use std::collections::BTreeSet;
use std::fs;

use crate::error::{Error, Result};
use crate::gpu::{SECTION, driver_error};
use crate::segment::GPU_UNIT;
use hostbuf_cuda::{CudaCode, CudaError, CudaGpu, DeviceSpan, Driver, GpuAccess, GpuFeature, PhysicalMemory};
use hostbuf_os::{Bytes, process};

/// The GPUs that this process sees, with their numbers on the host.
///
/// A GPU has the number that its PCI address has among those of all NVIDIA GPUs of the host, as in
/// `nvidia-smi`. CUDA numbers the GPUs of each process anew (`CUDA_VISIBLE_DEVICES`,
/// `CUDA_DEVICE_ORDER`), so its numbers name no GPU to other processes.
#[derive(Debug)]
pub struct HostGpus {
    /// The GPUs in CUDA's order, with their numbers.
    visible: Vec<(u32, CudaGpu)>,
    /// The number of GPUs of the host, as far as the driver shows them.
    on_host: usize,
}

/// The folder with an entry for each GPU of the host, named by its PCI address.
const DRIVER_FOLDER: &str = "/proc/driver/nvidia/gpus";

/// The variable that limits the GPUs that a process sees.
const VISIBLE: &str = "CUDA_VISIBLE_DEVICES";

impl HostGpus {
    /// Initialises the driver, and finds the GPUs that this process sees. It makes no context.
    ///
    /// # Errors
    /// [`Error::Unsupported`] without a driver, without a GPU, and with a driver that cannot share
    /// memory of its GPUs.
    pub fn find() -> Result<HostGpus> {
        let find = || -> std::result::Result<HostGpus, CudaError> {
            let gpus = Driver::find()?.gpus()?;
            let addresses: std::result::Result<Vec<_>, _> = gpus.iter().map(CudaGpu::pci_address).collect();
            let numbers = match addresses {
                Ok(addresses) => numbers(&addresses, host_addresses()),
                // A driver without this function numbers all GPUs by itself.
                Err(CudaError::MissingFunction { .. }) => gpus.iter().map(CudaGpu::ordinal).collect(),
                Err(error) => return Err(error),
            };
            let on_host = host_addresses().len().max(gpus.len());
            Ok(HostGpus { visible: numbers.into_iter().zip(gpus).collect(), on_host })
        };
        let found = find().map_err(|error| driver_error(&error))?;
        found.visible.iter().try_for_each(|(number, gpu)| can_share(*number, gpu))?;
        Ok(found)
    }

    /// Returns the GPU with this number on the host.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if this process does not see it.
    pub fn gpu(&self, number: u32) -> Result<&CudaGpu> {
        let found = self.visible.iter().find(|(visible, _)| *visible == number).map(|(_, gpu)| gpu);
        found.ok_or_else(|| {
            let visible: Vec<String> = self.visible.iter().map(|(number, _)| number.to_string()).collect();
            let other = if std::env::var_os(VISIBLE).is_some() {
                format!(", or add GPU {number} to {VISIBLE}")
            } else if (number as usize) < self.on_host {
                format!(", or give GPU {number} to the job or the container")
            } else {
                String::new()
            };
            Error::Unsupported {
                what: format!("gpu={number}"),
                why: format!(
                    "process {} on {} sees only GPU {} of the host, as nvidia-smi numbers them: request a GPU that it \
                     sees{other}",
                    std::process::id(),
                    process::host_name(),
                    visible.join(", ")
                ),
            }
        })
    }

    /// Returns one of the GPUs. Addresses are the same for all of them.
    ///
    /// # Panics
    /// Never: a process without a GPU is an error of [`find`](HostGpus::find).
    #[must_use]
    pub fn first(&self) -> &CudaGpu {
        &self.visible.first().expect("the driver has a GPU").1
    }

    /// Lets all GPUs of this process read `span`, and write if `writes`.
    ///
    /// # Errors
    /// [`Error::Unsupported`] with the first GPU that cannot have the access.
    pub(super) fn set_access(&self, span: DeviceSpan, writes: bool) -> Result<()> {
        self.visible.iter().try_for_each(|(number, gpu)| {
            let access = if writes { GpuAccess::read_write(gpu) } else { GpuAccess::read_only(gpu) };
            span.set_access(&[access]).map_err(|error| no_access(*number, writes, &error))
        })
    }
}

/// Returns the error of a GPU that cannot have an access, or lose the right to write.
fn no_access(number: u32, writes: bool, error: &CudaError) -> Error {
    let host = process::host_name();
    let why = match error.code() {
        Some(CudaCode::INVALID_DEVICE) if writes => {
            "it has no peer access to a GPU that holds the memory (nvidia-smi topo -p2p r): name GPUs with peer access in \
             gpu=, and give each rank only such GPUs (CUDA_VISIBLE_DEVICES)"
                .to_owned()
        }
        _ => error.without_host(),
    };
    let access = if writes { "access" } else { "read-only access" };
    Error::Unsupported { what: format!("{access} of GPU {number} of {host} to the GPU sections"), why }
}

/// Checks that a GPU can have sections.
fn can_share(number: u32, gpu: &CudaGpu) -> Result<()> {
    let granularity = PhysicalMemory::granularity(gpu).map_err(|error| driver_error(&error))?;
    let lacks = |feature| gpu.reports(feature) == Some(false);
    let why = if lacks(GpuFeature::VirtualMemory) || lacks(GpuFeature::DescriptorExport) {
        "does not share memory by descriptors".to_owned()
    } else if !(GPU_UNIT as usize).is_multiple_of(granularity) {
        format!(
            "divides its memory into units of {}, which do not divide {}",
            Bytes(granularity as u64),
            Bytes(GPU_UNIT)
        )
    } else {
        return Ok(());
    };
    let host = process::host_name();
    let why = format!("GPU {number} on {host}, or its driver, {why}: leave it out of CUDA_VISIBLE_DEVICES");
    Err(Error::Unsupported { what: SECTION.into(), why })
}

/// Returns the PCI addresses of all GPUs of the host, as far as the driver shows them.
fn host_addresses() -> BTreeSet<String> {
    let entries = fs::read_dir(DRIVER_FOLDER).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

/// Returns the numbers of the GPUs with these PCI addresses among all GPUs of the host.
fn numbers(visible: &[String], host: BTreeSet<String>) -> Vec<u32> {
    // The driver writes domains with four digits here and with eight there.
    let short = |address: &str| {
        address.rsplit_once(':').map_or(address.into(), |(bus, device)| {
            let (domain, bus) = bus.rsplit_once(':').unwrap_or(("0", bus));
            let domain = u32::from_str_radix(domain, 16).unwrap_or(0);
            format!("{domain:08x}:{bus}:{device}").to_ascii_lowercase()
        })
    };
    let all: BTreeSet<String> = host
        .iter()
        .map(|address| short(address))
        .chain(visible.iter().map(|address| short(address)))
        .collect();
    let number = |address: &String| all.iter().position(|one| *one == short(address)).unwrap_or(0) as u32;
    visible.iter().map(number).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpus_are_numbered_by_their_addresses_on_the_host() {
        let set = |addresses: &[&str]| addresses.iter().map(ToString::to_string).collect::<BTreeSet<_>>();
        let list = |addresses: &[&str]| addresses.iter().map(ToString::to_string).collect::<Vec<_>>();
        let host = ["0000:1b:00.0", "0000:43:00.0", "0000:a1:00.0", "0001:01:00.0"];
        assert_eq!(numbers(&list(&["0000:43:00.0"]), set(&host)), [1]);
        assert_eq!(numbers(&list(&["0001:01:00.0", "0000:1B:00.0"]), set(&host)), [3, 0]);
        assert_eq!(numbers(&list(&["00000000:A1:00.0"]), set(&host)), [2]);
        // A container may not show the driver's folder.
        assert_eq!(numbers(&list(&["0000:43:00.0", "0000:1b:00.0"]), set(&[])), [1, 0]);
    }
}
