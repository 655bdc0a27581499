//! The kind of device `cuda`: all GPUs, through the context of one of them.
//!
//! Names: CUDA, libcuda, NVIDIA, nvidia-smi.

use super::device::Device;
use super::kind::{DeviceCheck, RegistrarKind};
use crate::error::Result;
use crate::registrar::Probe;

/// The GPUs.
pub(super) struct CudaKind;

impl RegistrarKind for CudaKind {
    fn name(&self) -> &'static str {
        "cuda"
    }

    fn forms(&self) -> &'static [&'static str] {
        &["cuda", "cuda:NUMBER"]
    }

    fn summary(&self) -> &'static str {
        "a GPU"
    }

    fn parse_selector(&self, selector: &str) -> std::result::Result<Option<String>, &'static str> {
        let number = selector.bytes().all(|b| b.is_ascii_digit()).then(|| selector.parse::<u32>().ok());
        match number.flatten() {
            Some(0) => Ok(None),
            Some(number) => Ok(Some(number.to_string())),
            None => Err("lacks the number of a GPU"),
        }
    }

    fn only_one(&self) -> Option<&'static str> {
        Some("several GPUs are named: a registration is valid for all GPUs, so one is enough")
    }

    fn check(&self) -> DeviceCheck {
        DeviceCheck {
            title: "GPU registration",
            optional: true,
            failed: &["see nvidia-smi and dmesg"],
            limited: &["install another version of the driver, or leave buffers unfrozen (docs/gpu.md)"],
        }
    }

    fn is_built(&self) -> bool {
        cfg!(feature = "cuda")
    }

    fn probe(&self) -> Probe {
        implementation::probe()
    }

    fn open(&self, selector: Option<&str>) -> Result<Device> {
        implementation::open(selector)
    }
}

#[cfg(feature = "cuda")]
mod implementation {
    use crate::cuda::{CudaHandle, CudaHost};
    use crate::devices::device::{Device, DeviceKey, DevicePart, SelectableRegistrar};
    use crate::error::Result;
    use crate::registrar::Probe;
    use crate::span::{Access, Span};

    pub(super) fn probe() -> Probe {
        CudaHost::probe()
    }

    pub(super) fn open(selector: Option<&str>) -> Result<Device> {
        let number = selector.and_then(|number| number.parse().ok()).unwrap_or(0);
        CudaHost::new(number).map(Device::new)
    }

    fn address_key(address: u64) -> DeviceKey {
        DeviceKey { address, ..DeviceKey::default() }
    }

    impl SelectableRegistrar for CudaHost {
        fn buffer_access(&self, writing: bool) -> Access {
            if writing { Access::WRITE } else { Access::READ }
        }

        fn device_key(address: u64) -> DeviceKey {
            address_key(address)
        }

        fn parts(&self, _: Span, handle: &CudaHandle) -> Vec<DevicePart> {
            let chunks = handle.chunks().iter();
            chunks.map(|chunk| DevicePart::new(chunk.host, address_key(chunk.device))).collect()
        }

        fn limitation(&self) -> Option<&'static str> {
            (!self.registers_read_only())
                .then_some("this driver cannot register read-only memory, such as a frozen buffer")
        }
    }
}

#[cfg(not(feature = "cuda"))]
mod implementation {
    use crate::devices::device::Device;
    use crate::error::{Error, Result};
    use crate::registrar::Probe;

    const WITHOUT: &str = "this hostbuf was built without CUDA (the feature cuda)";

    pub(super) fn probe() -> Probe {
        Probe::Missing(WITHOUT.into())
    }

    pub(super) fn open(selector: Option<&str>) -> Result<Device> {
        let device = selector.map_or("cuda".to_owned(), |number| format!("cuda:{number}"));
        Err(Error::Unsupported { what: format!("registering memory with {device}"), why: WITHOUT.into() })
    }
}
