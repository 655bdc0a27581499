//! The kind of device `mlock`: no device, pages are locked into memory.
//!
//! Names: mlock, page-locking.

use super::device::{Device, DeviceKey, SelectableRegistrar};
use super::kind::{DeviceCheck, RegistrarKind};
use crate::error::Result;
use crate::mlock::Mlock;
use crate::registrar::Probe;
use crate::span::Access;

/// Page-locking.
pub(super) struct MlockKind;

impl RegistrarKind for MlockKind {
    fn name(&self) -> &'static str {
        "mlock"
    }

    fn forms(&self) -> &'static [&'static str] {
        &["mlock"]
    }

    fn summary(&self) -> &'static str {
        "page-locking, for reading"
    }

    fn parse_selector(&self, _: &str) -> std::result::Result<Option<String>, &'static str> {
        Err("selects a device, but mlock has no devices")
    }

    fn check(&self) -> DeviceCheck {
        DeviceCheck {
            title: "page-locking",
            optional: false,
            failed: &[
                "ulimit -l unlimited",
                "/etc/security/limits.conf: * - memlock unlimited (and log in again)",
            ],
            limited: &[],
        }
    }

    fn probe(&self) -> Probe {
        Mlock::probe()
    }

    fn open(&self, _: Option<&str>) -> Result<Device> {
        Ok(Device::new(Mlock::new()))
    }
}

impl SelectableRegistrar for Mlock {
    fn buffer_access(&self, _: bool) -> Access {
        // Nothing writes.
        Access::READ
    }

    fn device_key((): ()) -> DeviceKey {
        DeviceKey::default()
    }
}
