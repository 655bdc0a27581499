//! Devices that are selected by name at run time.

use std::fmt;
use std::str::FromStr;

#[cfg(feature = "cuda")]
use crate::cuda::{CudaHandle, CudaHost};
use crate::error::{Error, Result};
use crate::memory::Memory;
use crate::mlock::Mlock;
use crate::properties::RegistrarProperties;
use crate::registrar::{Probe, Registrar};
use crate::span::Access;
#[cfg(feature = "rdma")]
use crate::verbs::{Verbs, VerbsHandle};

/// The name of a device in the syntax of the launcher's `--register`: `mlock`, `cuda`, `cuda:1`,
/// `rdma`, `rdma:mlx5_0`. All builds parse all names.
///
/// ```
/// use hostbuf_register::DeviceName;
/// assert_eq!("cuda:1".parse::<DeviceName>()?, DeviceName::Cuda(1));
/// assert!("gpu".parse::<DeviceName>().is_err());
/// # Ok::<(), hostbuf_register::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceName {
    /// No device: pages are locked into memory.
    Mlock,
    /// All GPUs, through the context of the GPU with this number.
    Cuda(u32),
    /// The RDMA device with this name, or the first one if there is no name.
    Rdma(Option<String>),
}

impl FromStr for DeviceName {
    type Err = Error;

    /// # Errors
    /// [`Error::Invalid`], with the valid names.
    fn from_str(text: &str) -> Result<DeviceName> {
        let wrong = |why: &str| {
            Error::invalid(format!("\"{text}\" {why}; expected cuda, cuda:NUMBER, rdma, rdma:NAME or mlock"))
        };
        let (name, which) = text.split_once(':').map_or((text, None), |(name, which)| (name, Some(which)));
        match (name, which) {
            ("mlock", None) => Ok(DeviceName::Mlock),
            ("mlock", Some(_)) => Err(wrong("selects a device, but mlock has no devices")),
            ("cuda", None) => Ok(DeviceName::Cuda(0)),
            ("cuda", Some(number)) => {
                let digits = number.bytes().all(|b| b.is_ascii_digit());
                let number = number.parse().ok().filter(|_| digits);
                number.map(DeviceName::Cuda).ok_or_else(|| wrong("lacks the number of a GPU"))
            }
            ("rdma", None) => Ok(DeviceName::Rdma(None)),
            ("rdma", Some(name)) => {
                let plain = |b: u8| b.is_ascii_alphanumeric() || b"_-.".contains(&b);
                if name.is_empty() || !name.bytes().all(plain) {
                    return Err(wrong("lacks the name of a device, like mlx5_0"));
                }
                Ok(DeviceName::Rdma(Some(name.into())))
            }
            _ => Err(wrong("is no device")),
        }
    }
}

impl fmt::Display for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeviceName::Mlock => f.write_str("mlock"),
            DeviceName::Cuda(0) => f.write_str("cuda"),
            DeviceName::Cuda(number) => write!(f, "cuda:{number}"),
            DeviceName::Rdma(None) => f.write_str("rdma"),
            DeviceName::Rdma(Some(name)) => write!(f, "rdma:{name}"),
        }
    }
}

impl DeviceName {
    /// Checks whether this build and this process can use this kind of device. It does not open the
    /// device, so it does not check that one with this name exists.
    #[must_use]
    pub fn probe(&self) -> Probe {
        match self {
            DeviceName::Mlock => Mlock::probe(),
            #[cfg(feature = "cuda")]
            DeviceName::Cuda(_) => CudaHost::probe(),
            #[cfg(not(feature = "cuda"))]
            DeviceName::Cuda(_) => Probe::Missing(WITHOUT_CUDA.into()),
            #[cfg(feature = "rdma")]
            DeviceName::Rdma(_) => Verbs::probe(),
            #[cfg(not(feature = "rdma"))]
            DeviceName::Rdma(_) => Probe::Missing(WITHOUT_RDMA.into()),
        }
    }

    #[allow(dead_code, reason = "a build with both features does not use it")]
    fn missing(&self, why: &str) -> Error {
        Error::Unsupported { what: format!("registering memory with {self}"), why: why.into() }
    }
}

#[cfg(not(feature = "cuda"))]
const WITHOUT_CUDA: &str = "this hostbuf was built without CUDA (the feature cuda)";
#[cfg(not(feature = "rdma"))]
const WITHOUT_RDMA: &str = "this hostbuf was built without RDMA (the feature rdma, which needs the headers of libibverbs); an installation contains \
     a libhostbuf with RDMA in lib/hostbuf/rdma, for LD_LIBRARY_PATH";

/// A [`Registrar`] over any device that this build supports, for programs that select the device at
/// run time.
pub enum Device {
    /// Page-locking.
    Mlock(Mlock),
    /// The GPUs.
    #[cfg(feature = "cuda")]
    Cuda(CudaHost),
    /// An RDMA device.
    #[cfg(feature = "rdma")]
    Rdma(Verbs),
}

/// The handle of a registration with a [`Device`].
pub enum DeviceHandle {
    /// No data: a locked page has no key.
    Mlock,
    /// The registration's addresses on the GPUs.
    #[cfg(feature = "cuda")]
    Cuda(CudaHandle),
    /// The memory region.
    #[cfg(feature = "rdma")]
    Rdma(VerbsHandle),
}

/// The key for requests to a [`Device`]; fields that the device does not have are 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceKey {
    /// The GPU's address of the first byte (CUDA).
    pub address: u64,
    /// The key for requests of this process (RDMA).
    pub lkey: u32,
    /// The key for requests of peers (RDMA).
    pub rkey: u32,
}

impl Device {
    /// Opens a device.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if this build or this host does not support the device, and the
    /// errors of the constructor: `CudaHost::new`, `Verbs::open`.
    pub fn open(name: &DeviceName) -> Result<Device> {
        match name {
            DeviceName::Mlock => Ok(Device::Mlock(Mlock::new())),
            #[cfg(feature = "cuda")]
            DeviceName::Cuda(number) => CudaHost::new(*number).map(Device::Cuda),
            #[cfg(not(feature = "cuda"))]
            DeviceName::Cuda(_) => Err(name.missing(WITHOUT_CUDA)),
            #[cfg(feature = "rdma")]
            DeviceName::Rdma(which) => Verbs::open(which.as_deref()).map(Device::Rdma),
            #[cfg(not(feature = "rdma"))]
            DeviceName::Rdma(_) => Err(name.missing(WITHOUT_RDMA)),
        }
    }
}

/// Evaluates an expression for the device's own registrar, whichever it is.
macro_rules! of_each {
    ($device:expr, $one:ident => $what:expr) => {
        match $device {
            Device::Mlock($one) => $what,
            #[cfg(feature = "cuda")]
            Device::Cuda($one) => $what,
            #[cfg(feature = "rdma")]
            Device::Rdma($one) => $what,
        }
    };
}

impl Registrar for Device {
    type Handle = DeviceHandle;
    type Key = DeviceKey;

    fn name(&self) -> String {
        of_each!(self, one => one.name())
    }

    fn stat_name(&self) -> String {
        of_each!(self, one => one.stat_name())
    }

    fn properties(&self) -> RegistrarProperties {
        of_each!(self, one => one.properties())
    }

    fn key(&self, handle: &DeviceHandle) -> DeviceKey {
        match (self, handle) {
            #[cfg(feature = "cuda")]
            (Device::Cuda(cuda), DeviceHandle::Cuda(handle)) => {
                DeviceKey { address: cuda.key(handle), ..DeviceKey::default() }
            }
            #[cfg(feature = "rdma")]
            (Device::Rdma(verbs), DeviceHandle::Rdma(handle)) => {
                let key = verbs.key(handle);
                DeviceKey { lkey: key.lkey, rkey: key.rkey, address: 0 }
            }
            _ => DeviceKey::default(),
        }
    }

    fn register(&self, memory: &Memory, access: Access) -> Result<DeviceHandle> {
        match self {
            Device::Mlock(mlock) => mlock.register(memory, access).map(|()| DeviceHandle::Mlock),
            #[cfg(feature = "cuda")]
            Device::Cuda(cuda) => cuda.register(memory, access).map(DeviceHandle::Cuda),
            #[cfg(feature = "rdma")]
            Device::Rdma(verbs) => verbs.register(memory, access).map(DeviceHandle::Rdma),
        }
    }

    fn deregister(&self, memory: &Memory, handle: DeviceHandle) -> Result<()> {
        match (self, handle) {
            (Device::Mlock(mlock), DeviceHandle::Mlock) => mlock.deregister(memory, ()),
            #[cfg(feature = "cuda")]
            (Device::Cuda(cuda), DeviceHandle::Cuda(handle)) => cuda.deregister(memory, handle),
            #[cfg(feature = "rdma")]
            (Device::Rdma(verbs), DeviceHandle::Rdma(handle)) => verbs.deregister(memory, handle),
            #[cfg(any(feature = "cuda", feature = "rdma"))]
            _ => Err(Error::invalid("a registration of another kind of device")),
        }
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
            ("", "is no device"),
            ("gpu", "\"gpu\" is no device; expected cuda"),
            ("CUDA", "is no device"),
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
        for name in [DeviceName::Cuda(7), DeviceName::Rdma(Some("none_such".into()))] {
            if let Err(error) = Device::open(&name) {
                assert!(matches!(error, Error::Unsupported { .. } | Error::Invalid { .. }), "{error}");
            }
            if let Probe::Missing(why) = name.probe() {
                assert!(!why.is_empty());
            }
        }
    }
}
