//! The kind of device `rdma`: an RDMA device by its name, or the first one.
//!
//! Names: RDMA, verbs, ibverbs, libibverbs, ibv_, mlx5.

use super::device::Device;
use super::kind::{DeviceCheck, RegistrarKind, SystemLibrary};
use crate::error::Result;
use crate::registrar::Probe;

/// The RDMA devices.
pub(super) struct RdmaKind;

impl RegistrarKind for RdmaKind {
    fn name(&self) -> &'static str {
        "rdma"
    }

    fn forms(&self) -> &'static [&'static str] {
        &["rdma", "rdma:NAME"]
    }

    fn summary(&self) -> &'static str {
        "an RDMA device, for remote reading and writing"
    }

    fn parse_selector(&self, selector: &str) -> std::result::Result<Option<String>, &'static str> {
        let plain = |b: u8| b.is_ascii_alphanumeric() || b"_-.".contains(&b);
        match !selector.is_empty() && selector.bytes().all(plain) {
            true => Ok(Some(selector.to_owned())),
            false => Err("lacks the name of a device, like mlx5_0"),
        }
    }

    fn library(&self) -> Option<SystemLibrary> {
        Some(SystemLibrary {
            soname: c"libibverbs.so.1",
            packages: "libibverbs1 and ibverbs-providers (or rdma-core)",
            headers: "scripts/install-deps rdma",
        })
    }

    fn check(&self) -> DeviceCheck {
        DeviceCheck {
            title: "RDMA registration",
            optional: true,
            failed: &["ulimit -l unlimited", "see ibv_devinfo and dmesg"],
            limited: &[],
        }
    }

    fn is_built(&self) -> bool {
        cfg!(feature = "rdma")
    }

    fn probe(&self) -> Probe {
        implementation::probe()
    }

    fn open(&self, selector: Option<&str>) -> Result<Device> {
        implementation::open(selector)
    }
}

#[cfg(feature = "rdma")]
mod implementation {
    use crate::devices::device::{Device, DeviceKey, DeviceObjects, DevicePart, SelectableRegistrar};
    use crate::error::Result;
    use crate::registrar::{Probe, Registrar};
    use crate::span::{Access, Span};
    use crate::verbs::{Verbs, VerbsHandle, VerbsKey};

    pub(super) fn probe() -> Probe {
        Verbs::probe()
    }

    pub(super) fn open(selector: Option<&str>) -> Result<Device> {
        Verbs::open(selector).map(Device::new)
    }

    impl SelectableRegistrar for Verbs {
        fn buffer_access(&self, writing: bool) -> Access {
            if writing { Access::REMOTE_READ | Access::REMOTE_WRITE } else { Access::REMOTE_READ }
        }

        fn device_key(key: VerbsKey) -> DeviceKey {
            DeviceKey { lkey: key.lkey, rkey: key.rkey, address: 0 }
        }

        fn parts(&self, span: Span, handle: &VerbsHandle) -> Vec<DevicePart> {
            let part = DevicePart::new(span, Verbs::device_key(self.key(handle)));
            vec![DevicePart { memory_region: Some(handle.as_ptr()), ..part }]
        }

        fn objects(&self) -> DeviceObjects {
            DeviceObjects { context: Some(self.context()), protection_domain: Some(self.protection_domain()) }
        }
    }
}

#[cfg(not(feature = "rdma"))]
mod implementation {
    use crate::devices::device::Device;
    use crate::error::{Error, Result};
    use crate::registrar::Probe;

    const WITHOUT: &str = "this hostbuf was built without RDMA (the feature rdma, which needs the headers of libibverbs); an installation contains \
         a libhostbuf with RDMA in lib/hostbuf/rdma, for LD_LIBRARY_PATH";

    pub(super) fn probe() -> Probe {
        Probe::Missing(WITHOUT.into())
    }

    pub(super) fn open(selector: Option<&str>) -> Result<Device> {
        let device = selector.map_or("rdma".to_owned(), |name| format!("rdma:{name}"));
        Err(Error::Unsupported { what: format!("registering memory with {device}"), why: WITHOUT.into() })
    }
}
