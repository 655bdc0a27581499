//! A registrar whose device is selected at run time.

use std::any::Any;
use std::ffi::c_void;
use std::ptr::NonNull;

use crate::error::{Error, Result};
use crate::memory::Memory;
use crate::properties::RegistrarProperties;
use crate::registrar::Registrar;
use crate::span::{Access, Span};

/// A [`Registrar`] over any device that this build supports, for programs that select the device at
/// run time. [`DeviceName::open`](crate::DeviceName::open) makes it.
pub struct Device(Box<dyn ErasedRegistrar>);

/// The handle of a registration with a [`Device`].
pub struct DeviceHandle {
    key: DeviceKey,
    inner: Box<dyn Any + Send + Sync>,
}

/// The key for requests to a [`Device`]; fields that the device does not have are 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceKey {
    /// The GPU's address of the first byte (CUDA).
    pub address: u64,
    /// The key for requests of this process (RDMA).
    pub lkey: u32,
    /// The key for requests of peers (RDMA).
    pub rkey: u32,
}

/// A part of a registration that one request can name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DevicePart {
    /// The address range in this process.
    pub span: Span,
    /// The key for requests.
    pub key: DeviceKey,
    /// The device's own object for the registration (`ibv_mr`), if there is one.
    pub memory_region: Option<NonNull<c_void>>,
}

/// The objects of a device that a program passes to the interface of the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceObjects {
    /// The context (`ibv_context`).
    pub context: Option<NonNull<c_void>>,
    /// The protection domain (`ibv_pd`).
    pub protection_domain: Option<NonNull<c_void>>,
}

/// A registrar that a [`Device`] can contain.
pub(super) trait SelectableRegistrar: Registrar {
    /// Returns the access for the registration of a whole buffer, of which other processes of the
    /// host and peers use the memory. `writing` is false for a frozen buffer.
    fn buffer_access(&self, writing: bool) -> Access;

    /// Converts a key.
    fn device_key(key: Self::Key) -> DeviceKey;

    /// Returns the parts of a registration of `span`.
    fn parts(&self, span: Span, handle: &Self::Handle) -> Vec<DevicePart> {
        vec![DevicePart::new(span, Self::device_key(self.key(handle)))]
    }

    /// Returns the objects of the device.
    fn objects(&self) -> DeviceObjects {
        DeviceObjects::default()
    }

    /// Returns the reason why the device supports some registrations only.
    fn limitation(&self) -> Option<&'static str> {
        None
    }
}

impl DevicePart {
    /// Makes a part without an object of the device.
    pub(super) fn new(span: Span, key: DeviceKey) -> DevicePart {
        DevicePart { span, key, memory_region: None }
    }
}

/// A [`SelectableRegistrar`] whose types are erased.
trait ErasedRegistrar: Send + Sync {
    fn name(&self) -> String;
    fn stat_name(&self) -> String;
    fn properties(&self) -> RegistrarProperties;
    fn register(&self, memory: &Memory, access: Access) -> Result<DeviceHandle>;
    fn deregister(&self, memory: &Memory, handle: DeviceHandle) -> Result<()>;
    fn buffer_access(&self, writing: bool) -> Access;
    fn parts(&self, span: Span, handle: &DeviceHandle) -> Vec<DevicePart>;
    fn objects(&self) -> DeviceObjects;
    fn limitation(&self) -> Option<&'static str>;
}

impl<R: SelectableRegistrar> ErasedRegistrar for R {
    fn name(&self) -> String {
        Registrar::name(self)
    }

    fn stat_name(&self) -> String {
        Registrar::stat_name(self)
    }

    fn properties(&self) -> RegistrarProperties {
        Registrar::properties(self)
    }

    fn register(&self, memory: &Memory, access: Access) -> Result<DeviceHandle> {
        let handle = Registrar::register(self, memory, access)?;
        let key = R::device_key(self.key(&handle));
        Ok(DeviceHandle { key, inner: Box::new(handle) })
    }

    fn deregister(&self, memory: &Memory, handle: DeviceHandle) -> Result<()> {
        match handle.inner.downcast::<R::Handle>() {
            Ok(handle) => Registrar::deregister(self, memory, *handle),
            Err(_) => Err(Error::invalid("a registration of another kind of device")),
        }
    }

    fn buffer_access(&self, writing: bool) -> Access {
        SelectableRegistrar::buffer_access(self, writing)
    }

    fn parts(&self, span: Span, handle: &DeviceHandle) -> Vec<DevicePart> {
        let handle = handle.inner.downcast_ref::<R::Handle>();
        handle.map_or_else(Vec::new, |handle| SelectableRegistrar::parts(self, span, handle))
    }

    fn objects(&self) -> DeviceObjects {
        SelectableRegistrar::objects(self)
    }

    fn limitation(&self) -> Option<&'static str> {
        SelectableRegistrar::limitation(self)
    }
}

impl Device {
    /// Wraps a registrar.
    pub(super) fn new(registrar: impl SelectableRegistrar) -> Device {
        Device(Box::new(registrar))
    }

    /// Returns the access for the registration of a whole buffer: reading and, if `writing`,
    /// writing, by this process and, with RDMA, by peers.
    #[must_use]
    pub fn buffer_access(&self, writing: bool) -> Access {
        self.0.buffer_access(writing)
    }

    /// Returns the parts of a registration of `span` in the order of their addresses. There is one,
    /// unless the device splits long ranges.
    #[must_use]
    pub fn parts(&self, span: Span, handle: &DeviceHandle) -> Vec<DevicePart> {
        self.0.parts(span, handle)
    }

    /// Returns the objects of the device that a program passes to the interface of the device.
    #[must_use]
    pub fn objects(&self) -> DeviceObjects {
        self.0.objects()
    }

    /// Returns the reason why the device supports some registrations only, if it is so.
    #[must_use]
    pub fn limitation(&self) -> Option<&'static str> {
        self.0.limitation()
    }
}

impl Registrar for Device {
    type Handle = DeviceHandle;
    type Key = DeviceKey;

    fn name(&self) -> String {
        self.0.name()
    }

    fn stat_name(&self) -> String {
        self.0.stat_name()
    }

    fn properties(&self) -> RegistrarProperties {
        self.0.properties()
    }

    fn key(&self, handle: &DeviceHandle) -> DeviceKey {
        handle.key
    }

    fn register(&self, memory: &Memory, access: Access) -> Result<DeviceHandle> {
        self.0.register(memory, access)
    }

    fn deregister(&self, memory: &Memory, handle: DeviceHandle) -> Result<()> {
        self.0.deregister(memory, handle)
    }
}
