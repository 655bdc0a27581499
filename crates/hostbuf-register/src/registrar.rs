//! Registrars, which register and deregister memory with one device.

use std::fmt;
use std::sync::Arc;

use crate::error::Result;
use crate::span::{Access, Span};
use hostbuf_os::fork_guard::ForkGuard;

/// A device's treatment of overlapping registrations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overlap {
    /// Registrations may overlap, and each one is independent (RDMA verbs).
    Free,
    /// The device refuses a range that overlaps a registered one (CUDA).
    Refused,
}

/// The result of checking whether a registrar works in this process. The check has no side effects.
#[derive(Clone, Debug, PartialEq, Eq)]
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

/// Registers and deregisters memory with one device. The device is part of the registrar: two
/// devices, or two contexts of one device, are two registrars.
///
/// One test suite checks the contract of all registrars: `register` registers either the whole span
/// or nothing; an unmapped span is an error, never a signal; each handle is passed to `deregister`
/// once; several threads may call both concurrently. `overlap` and `footprint` return at once and
/// neither allocate nor free memory, since a cache calls them under a lock that must not depend on
/// the program's allocator.
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

    /// Returns the device's treatment of overlapping registrations.
    fn overlap(&self) -> Overlap;

    /// Returns the number of bytes that the device pins for `span`, which count in a budget.
    fn footprint(&self, span: Span) -> usize {
        span.len()
    }

    /// Returns the key of a registration, which is constant while the registration lives. It
    /// returns at once and must not panic.
    fn key(&self, handle: &Self::Handle) -> Self::Key;

    /// Registers all of `span`.
    ///
    /// # Errors
    /// [`Error::Registration`](crate::Error::Registration) with the operands and the device's
    /// error.
    fn register(&self, span: Span, access: Access) -> Result<Self::Handle>;

    /// Ends a registration.
    ///
    /// # Errors
    /// [`Error::Registration`](crate::Error::Registration) if the device keeps the registration;
    /// its pages may stay pinned until the process ends.
    fn deregister(&self, span: Span, handle: Self::Handle) -> Result<()>;
}

/// A registration of a range with a device, which ends when this is dropped. It owns its registrar
/// and, if the memory is hostbuf's, the memory, so deregistration always precedes unmapping.
///
/// It belongs to the process that made it. Dropping it in a forked child does nothing, since the
/// device would end the parent's registration.
pub struct Registration<R: Registrar> {
    registrar: Arc<R>,
    handle: Option<R::Handle>,
    span: Span,
    access: Access,
    fork_guard: ForkGuard,
    memory: Option<Arc<dyn Send + Sync>>,
}

impl<R: Registrar> Registration<R> {
    /// Registers `span`. Foreign memory must stay mapped as long as the registration lives.
    ///
    /// # Errors
    /// As [`Registrar::register`].
    pub fn new(registrar: &Arc<R>, span: Span, access: Access) -> Result<Registration<R>> {
        Registration::keeping(registrar, span, access, None)
    }

    /// Registers `span` and keeps `memory` alive until the registration has ended. If the device
    /// refuses to end it, `memory` is never dropped.
    ///
    /// # Errors
    /// As [`Registrar::register`].
    pub fn with_keepalive(
        registrar: &Arc<R>,
        span: Span,
        access: Access,
        memory: Arc<dyn Send + Sync>,
    ) -> Result<Registration<R>> {
        Registration::keeping(registrar, span, access, Some(memory))
    }

    fn keeping(
        registrar: &Arc<R>,
        span: Span,
        access: Access,
        memory: Option<Arc<dyn Send + Sync>>,
    ) -> Result<Registration<R>> {
        let handle = registrar.register(span, access)?;
        let registrar = registrar.clone();
        Ok(Registration {
            registrar,
            handle: Some(handle),
            span,
            access,
            fork_guard: ForkGuard::current(),
            memory,
        })
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

    /// Returns the registered range.
    #[must_use]
    pub fn span(&self) -> Span {
        self.span
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
                let result = self.registrar.deregister(self.span, handle);
                if result.is_err() {
                    // The device may still access the memory, so it stays mapped and is not frozen.
                    std::mem::forget(self.memory.take());
                }
                result
            }
            Some(handle) => {
                // The registration belongs to the parent: it is neither ended nor freed here.
                std::mem::forget((handle, self.memory.take()));
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
            .field("span", &format_args!("{}", self.span))
            .field("access", &self.access)
            .finish_non_exhaustive()
    }
}
