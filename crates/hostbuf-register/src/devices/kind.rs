//! The kinds of devices that are selected by name.

use std::ffi::CStr;

use super::device::Device;
use crate::error::Result;
use crate::registrar::Probe;

/// A kind of device, such as `cuda`. All builds know all kinds, so that all of them parse all
/// names; a build without a kind's feature reports it as missing.
pub(super) trait RegistrarKind: Sync {
    /// Returns the name of the kind: the part of a device's name before the colon.
    fn name(&self) -> &'static str;

    /// Returns the forms of a device's name for messages, such as `rdma:NAME`.
    fn forms(&self) -> &'static [&'static str];

    /// Returns a description of the devices for a list of all kinds.
    fn summary(&self) -> &'static str;

    /// Checks the part of a device's name after the colon. Returns `None` for the default device.
    ///
    /// # Errors
    /// The rest of a sentence that begins with the device's name.
    fn parse_selector(&self, selector: &str) -> std::result::Result<Option<String>, &'static str>;

    /// Returns the reason why a list names only one device of this kind, if it does.
    fn only_one(&self) -> Option<&'static str> {
        None
    }

    /// Returns the library that a program with this kind of device needs in order to start.
    fn library(&self) -> Option<SystemLibrary> {
        None
    }

    /// Returns the description of `hostbuf doctor`'s check of this kind.
    fn check(&self) -> DeviceCheck;

    /// Returns whether this build contains the kind.
    fn is_built(&self) -> bool {
        true
    }

    /// Checks whether this build and this process can use the kind, without opening a device.
    fn probe(&self) -> Probe;

    /// Opens the device that a checked selector names, or the default device.
    ///
    /// # Errors
    /// [`Error::Unsupported`](crate::Error::Unsupported) if this build or this host does not
    /// support the device, and the errors of the registrar's constructor.
    fn open(&self, selector: Option<&str>) -> Result<Device>;
}

/// A shared library that is loaded with a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SystemLibrary {
    /// The name by which the dynamic linker finds it.
    pub soname: &'static CStr,
    /// The packages that contain it.
    pub packages: &'static str,
    /// The command that installs its headers for a build of hostbuf.
    pub headers: &'static str,
}

/// The description of a check that registers some memory with a kind of device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceCheck {
    /// The title.
    pub title: &'static str,
    /// True if a missing device is no problem.
    pub optional: bool,
    /// The remedies if registering fails.
    pub failed: &'static [&'static str],
    /// The remedies if the device works with a limitation.
    pub limited: &'static [&'static str],
}
