//! The names of devices.

use std::fmt;
use std::str::FromStr;

use super::ALL;
use super::device::Device;
use super::kind::{DeviceCheck, RegistrarKind, SystemLibrary};
use crate::error::{Error, Result};
use crate::registrar::Probe;

/// The name of a device in the syntax of the launcher's `--register`: `mlock`, `cuda`, `cuda:1`,
/// `rdma`, `rdma:mlx5_0`. All builds parse all names.
///
/// ```
/// use hostbuf_register::DeviceName;
/// let name: DeviceName = "cuda:1".parse()?;
/// assert_eq!((name.kind(), name.selector()), ("cuda", Some("1")));
/// assert!("gpu".parse::<DeviceName>().is_err());
/// # Ok::<(), hostbuf_register::Error>(())
/// ```
#[derive(Clone)]
pub struct DeviceName {
    kind: &'static dyn RegistrarKind,
    /// The device among those of the kind, or `None` for the default device.
    selector: Option<String>,
}

impl FromStr for DeviceName {
    type Err = Error;

    /// # Errors
    /// [`Error::Invalid`], with the valid names.
    fn from_str(text: &str) -> Result<DeviceName> {
        let wrong = |why: &str| {
            let forms: Vec<&str> = DeviceName::all_forms().collect();
            let (last, others) = forms.split_last().expect("a kind of device has a form");
            let others = others.join(", ");
            Error::invalid(format!("\"{text}\" {why}: expected {others} or {last}"))
        };
        let (name, selector) = text.split_once(':').map_or((text, None), |(name, rest)| (name, Some(rest)));
        let kind =
            ALL.into_iter().find(|kind| kind.name() == name).ok_or_else(|| wrong("is not a device"))?;
        let selector = selector.map(|selector| kind.parse_selector(selector)).transpose().map_err(wrong)?;
        Ok(DeviceName { kind, selector: selector.flatten() })
    }
}

impl PartialEq for DeviceName {
    fn eq(&self, other: &DeviceName) -> bool {
        (self.kind(), self.selector()) == (other.kind(), other.selector())
    }
}

impl Eq for DeviceName {}

impl fmt::Display for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind())?;
        self.selector.as_ref().map_or(Ok(()), |selector| write!(f, ":{selector}"))
    }
}

impl fmt::Debug for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeviceName({self})")
    }
}

impl DeviceName {
    /// Returns the names of the default devices of all kinds.
    pub fn all() -> impl Iterator<Item = DeviceName> {
        ALL.into_iter().map(|kind| DeviceName { kind, selector: None })
    }

    /// Returns the forms of the names of all kinds, such as `cuda:NUMBER`, for messages.
    pub fn all_forms() -> impl Iterator<Item = &'static str> {
        ALL.into_iter().flat_map(RegistrarKind::forms).copied()
    }

    /// Returns the forms of the names of this kind of device.
    #[must_use]
    pub fn forms(&self) -> &'static [&'static str] {
        self.kind.forms()
    }

    /// Returns a description of this kind of device for a list of all kinds.
    #[must_use]
    pub fn summary(&self) -> &'static str {
        self.kind.summary()
    }

    /// Returns the name of the kind of device, such as `cuda`.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        self.kind.name()
    }

    /// Returns the part of the name that selects a device of the kind, or `None` for the default
    /// device.
    #[must_use]
    pub fn selector(&self) -> Option<&str> {
        self.selector.as_deref()
    }

    /// Returns whether this build contains the kind of device.
    #[must_use]
    pub fn is_built(&self) -> bool {
        self.kind.is_built()
    }

    /// Returns the library that a program with this kind of device needs in order to start.
    #[must_use]
    pub fn library(&self) -> Option<SystemLibrary> {
        self.kind.library()
    }

    /// Returns the description of a check that registers some memory with the device.
    #[must_use]
    pub fn check(&self) -> DeviceCheck {
        self.kind.check()
    }

    /// Returns the reason why a list names only one device of this kind, if it does.
    pub(super) fn only_one(&self) -> Option<&'static str> {
        self.kind.only_one()
    }

    /// Checks whether this build and this process can use this kind of device. It does not open the
    /// device, so it does not check that one with this name exists.
    #[must_use]
    pub fn probe(&self) -> Probe {
        self.kind.probe()
    }

    /// Opens the device.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if this build or this host does not support the device, and the
    /// errors of the registrar's constructor: `CudaHost::new`, `Verbs::open`.
    pub fn open(&self) -> Result<Device> {
        self.kind.open(self.selector())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_parse_and_print() {
        for text in ["cuda", "cuda:1", "rdma", "rdma:mlx5_0", "mlock"] {
            assert_eq!(text.parse::<DeviceName>().unwrap().to_string(), text);
        }
        assert_eq!("cuda:0".parse::<DeviceName>().unwrap().to_string(), "cuda");
    }

    #[test]
    fn an_error_names_the_invalid_device() {
        for (text, words) in [
            ("", "is not a device"),
            ("gpu", "\"gpu\" is not a device: expected cuda"),
            ("CUDA", "is not a device"),
            ("cuda:", "number of a GPU"),
            ("cuda:x", "number of a GPU"),
            ("cuda:+1", "number of a GPU"),
            ("cuda:-1", "number of a GPU"),
            ("cuda:99999999999", "number of a GPU"),
            ("rdma:", "like mlx5_0"),
            ("rdma:a b", "like mlx5_0"),
            ("rdma:a:b", "like mlx5_0"),
            ("mlock:1", "mlock has no devices"),
        ] {
            let error = text.parse::<DeviceName>().unwrap_err().to_string();
            assert!(error.contains(words), "{text}: {error}");
        }
    }

    #[test]
    fn a_build_without_a_device_returns_an_error() {
        for name in ["cuda:7", "rdma:none_such"].map(|name| name.parse::<DeviceName>().unwrap()) {
            if let Err(error) = name.open() {
                assert!(matches!(error, Error::Unsupported { .. } | Error::Invalid { .. }), "{error}");
            }
            if let Probe::Missing(why) = name.probe() {
                assert!(!why.is_empty());
            }
        }
    }

    #[test]
    fn each_kind_is_listed_once_with_its_forms() {
        let all: Vec<DeviceName> = DeviceName::all().collect();
        for (i, name) in all.iter().enumerate() {
            assert_eq!(name.to_string().parse::<DeviceName>().unwrap(), *name);
            assert!(all[..i].iter().all(|other| other != name), "{name} is listed twice");
            assert!(name.forms().contains(&name.kind()) && !name.check().title.is_empty());
            assert!(!name.summary().is_empty());
        }
    }
}
