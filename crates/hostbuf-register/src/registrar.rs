//! Registrars, which register and deregister memory with one device.

use std::fmt;
use std::sync::Arc;

use crate::error::{Bytes, Error, Result};
use crate::memory::Memory;
use crate::properties::RegistrarProperties;
use crate::span::{Access, Span};
use hostbuf_os::fork_guard::ForkGuard;

/// The result of checking whether a registrar works in this process. The check has no side effects.
///
/// It works or it does not, so the enum is exhaustive.
#[derive(Clone, Debug, PartialEq, Eq)]
// Exhaustive: a device is available or it is not.
pub enum Probe {
    /// The registrar works. The text describes the device.
    Ready(String),
    /// The registrar does not work. The text gives the reason and the remedy.
    Missing(String),
}

impl Probe {
    /// Returns whether the registrar works.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        matches!(self, Probe::Ready(_))
    }
}

impl fmt::Display for Probe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Probe::Ready(what) => write!(f, "{what}"),
            Probe::Missing(why) => write!(f, "not available: {why}"),
        }
    }
}

/// The means to register and deregister memory with one device. The device is part of the
/// registrar: two devices, or two contexts of one device, are two registrars.
///
/// # Contract
///
/// The cache, [`Registration`] and [`PinnedAlloc`](crate::PinnedAlloc) rely on these promises of an
/// implementation. The suite `testing::contract` (feature `testing`) checks them.
///
/// - *Whole or nothing.* After `register` has succeeded, the device knows all of the memory. After
///   an error it knows no part of it. Host memory that is not mapped is an error, never a signal.
/// - *Properties.* [`properties`](Registrar::properties) always returns the same value. The device
///   treats overlaps as it states, pins whole multiples of the granularity, and returns an error
///   for a range longer than the longest one.
/// - *Kinds of memory.* A kind that the properties do not include is [`Error::Unsupported`].
/// - *Ends.* `deregister` ends one registration: the one of the handle, all of it, and no other.
///   Afterwards the same memory can be registered again. After an error of `deregister`, the device
///   may still access the memory.
/// - *Keys.* The key of a registration is constant while the registration lives.
/// - *Errors.* An error of the device is [`Error::Registration`] with the name of the device, the
///   memory, and a reason.
/// - *Threads.* Several threads may call all methods concurrently.
/// - *No reentry.* `register` and `deregister` do not call the cache that uses this registrar.
///
/// In return an implementation relies on its callers: each handle is passed to `deregister` of the
/// registrar that made it, at most once, with the memory that was registered, in the process that
/// registered it.
///
/// # Safety
///
/// All methods are safe: registering changes no byte of the memory. It permits a device to access
/// the memory on later requests, which are made with the key through interfaces of the device, and
/// these are unsafe. The code that makes such a request guarantees that
///
/// - the registration lives until the request has completed, and the memory stays mapped as long as
///   the registration lives: for foreign memory a [`Lease`](crate::Lease) or the owner guarantees
///   it, for memory of this crate the registration itself;
/// - while the device writes, no reference to that memory exists, and while it reads, no thread
///   writes there.
///
/// No unsafe code of this crate depends on an implementation, so a broken one causes wrong answers,
/// errors and leaks, but no undefined behaviour in this crate.
pub trait Registrar: Send + Sync + 'static {
    /// The device's handle of a registration, such as keys or a device address. Deregistering
    /// consumes it.
    type Handle: Send + Sync + 'static;

    /// The part of the handle that requests to the device need; a cache hit returns a copy. It
    /// should be small, since each thread that uses a cache has room for two keys per registration.
    /// `()` if there is none.
    type Key: Copy + Send + Sync + 'static;

    /// Returns the name for messages, such as `mlock`, `cuda 0` or `mlx5_0`.
    fn name(&self) -> String;

    /// Returns the name for `hostbuf stat`, which shows at most 23 bytes of it.
    fn stat_name(&self) -> String {
        self.name()
    }

    /// Returns the properties of the device.
    fn properties(&self) -> RegistrarProperties;

    /// Returns the key of a registration. It must not panic. A cache calls it for some of its hits,
    /// so it should take no lock and make no system call.
    fn key(&self, handle: &Self::Handle) -> Self::Key;

    /// Registers all of `memory`.
    ///
    /// # Errors
    /// [`Error::Unsupported`](crate::Error::Unsupported) for a kind of memory that the device does
    /// not support; [`Error::Registration`](crate::Error::Registration) with the operands and the
    /// device's error.
    fn register(&self, memory: &Memory, access: Access) -> Result<Self::Handle>;

    /// Ends a registration of `memory`.
    ///
    /// # Errors
    /// [`Error::Registration`](crate::Error::Registration) if the device keeps the registration;
    /// its pages may stay pinned until the process ends.
    fn deregister(&self, memory: &Memory, handle: Self::Handle) -> Result<()>;
}

/// A registration of memory with a device, which ends when this is dropped. It owns its registrar
/// and, if the memory is hostbuf's, the memory, so deregistration always precedes unmapping.
///
/// It belongs to the process that made it. Dropping it in a forked child does nothing, since the
/// device would end the parent's registration.
pub struct Registration<R: Registrar> {
    registrar: Arc<R>,
    handle: Option<R::Handle>,
    memory: Memory,
    access: Access,
    fork_guard: ForkGuard,
    keepalive: Option<Arc<dyn Send + Sync>>,
}

impl<R: Registrar> Registration<R> {
    /// Registers `memory`, for example a [`Span`]. Foreign host memory must stay mapped as long as
    /// the registration lives.
    ///
    /// # Errors
    /// As [`Registrar::register`].
    pub fn new(registrar: &Arc<R>, memory: impl Into<Memory>, access: Access) -> Result<Registration<R>> {
        Registration::keeping(registrar, memory.into(), access, None)
    }

    /// Registers `memory` and keeps `keepalive` alive until the registration has ended. If the
    /// device refuses to end it, `keepalive` is never dropped.
    ///
    /// # Errors
    /// As [`Registrar::register`].
    pub fn with_keepalive(
        registrar: &Arc<R>,
        memory: impl Into<Memory>,
        access: Access,
        keepalive: Arc<dyn Send + Sync>,
    ) -> Result<Registration<R>> {
        Registration::keeping(registrar, memory.into(), access, Some(keepalive))
    }

    fn keeping(
        registrar: &Arc<R>,
        memory: Memory,
        access: Access,
        keepalive: Option<Arc<dyn Send + Sync>>,
    ) -> Result<Registration<R>> {
        let handle = Some(registrar.register(&memory, access)?);
        let (registrar, fork_guard) = (registrar.clone(), ForkGuard::current());
        Ok(Registration { registrar, handle, memory, access, fork_guard, keepalive })
    }

    /// Returns the device's handle.
    ///
    /// # Panics
    /// Never: a registration has a handle until it is dropped.
    #[must_use]
    pub fn handle(&self) -> &R::Handle {
        self.handle.as_ref().expect("a registration has a handle until it ends")
    }

    /// Returns the key for requests to the device.
    #[must_use]
    pub fn key(&self) -> R::Key {
        self.registrar.key(self.handle())
    }

    /// Returns the registered memory.
    #[must_use]
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Returns the registered range of host memory, or `None` for memory of another kind.
    #[must_use]
    pub fn span(&self) -> Option<Span> {
        self.memory.as_host()
    }

    /// Returns the access that the device has.
    #[must_use]
    pub fn access(&self) -> Access {
        self.access
    }

    /// Ends the registration and returns the result. Dropping it instead only logs an error.
    ///
    /// # Errors
    /// As [`Registrar::deregister`].
    pub fn deregister(mut self) -> Result<()> {
        self.end()
    }

    fn end(&mut self) -> Result<()> {
        match self.handle.take() {
            Some(handle) if self.fork_guard.is_current() => {
                let result = self.registrar.deregister(&self.memory, handle);
                if result.is_err() {
                    // The device may still access the memory, so it stays mapped and is not frozen.
                    std::mem::forget(self.keepalive.take());
                }
                result
            }
            Some(handle) => {
                // The registration belongs to the parent: it is neither ended nor freed here.
                std::mem::forget((handle, self.keepalive.take()));
                Ok(())
            }
            None => Ok(()),
        }
    }
}

impl<R: Registrar> Drop for Registration<R> {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            tracing::error!(%error, "cannot end a registration");
        }
    }
}

impl<R: Registrar> fmt::Debug for Registration<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.registrar.name();
        f.debug_struct("Registration")
            .field("device", &name)
            .field("memory", &format_args!("{}", self.memory))
            .field("access", &self.access)
            .finish_non_exhaustive()
    }
}

impl Memory {
    /// Returns the range of host memory, for registrars that support no other kind. `device`
    /// returns the name of the device, and is called for the error only.
    ///
    /// # Errors
    /// [`Error::Unsupported`] with the device and the memory.
    #[inline]
    pub fn require_host(&self, device: impl FnOnce() -> String) -> Result<Span> {
        match self {
            Memory::Host(span) => Ok(*span),
            other => Err(other.unsupported(&device())),
        }
    }

    /// Makes the error of a device that does not support this kind of memory.
    #[must_use]
    pub fn unsupported(&self, device: &str) -> Error {
        Error::Unsupported {
            what: format!("registering {self} ({}) with {device}", Bytes(self.len() as u64)),
            why: format!("{device} registers host memory only; copy the data to registered host memory"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use super::*;
    use crate::memory::{DeviceRange, DmaBuf};

    #[test]
    fn an_unsupported_kind_of_memory_is_named_with_the_device_and_the_remedy() {
        let file: OwnedFd = std::fs::File::open("/proc/self/status").expect("a file").into();
        let part = Memory::from(DmaBuf::new(file, 0..4096, 0).unwrap());
        let text = part.require_host(|| "mlock".into()).unwrap_err().to_string();
        for words in ["0x0-0x1000 of the dma-buf with descriptor", "4 KiB", "mlock", "copy the data"] {
            assert!(text.contains(words), "{text}");
        }
        assert_eq!(text.lines().count(), 1);
        let device = Memory::from(DeviceRange::new(0x10, 0x20).unwrap()).unsupported("x").to_string();
        assert!(device.starts_with("registering 0x10-0x30 of a device (32 bytes) with x"), "{device}");
        let host = Span::new(1, 2).unwrap();
        assert_eq!(Memory::from(host).require_host(|| unreachable!()).unwrap(), host);
    }
}
