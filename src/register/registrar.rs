//! What makes and ends registrations for one device.

use std::fmt;
use std::sync::Arc;

use crate::error::Result;
use crate::os::lineage::Lineage;
use crate::span::{Access, Span};

/// Whether registrations of one device may have bytes in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overlap {
    /// They may, and each counts by itself (RDMA verbs).
    Free,
    /// The device refuses a range that overlaps a registered one (CUDA).
    Refused,
}

/// Whether a registrar can work in this process, found out without harm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Probe {
    /// It can; with what, for people.
    Ready(String),
    /// It cannot; why, and what to do.
    Missing(String),
}

impl Probe {
    /// Whether it can.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        matches!(self, Probe::Ready(_))
    }
}

impl fmt::Display for Probe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Probe::Ready(what) => write!(f, "{what}"),
            Probe::Missing(why) => write!(f, "not here: {why}"),
        }
    }
}

/// Makes and ends registrations for one device. The device is part of the registrar: two devices, or two contexts of one,
/// are two registrars.
///
/// The contract, which one suite checks for all of them: `register` either registers the whole span or nothing; a span
/// that is not mapped is an error, never a signal; each handle is given to `deregister` once; both may be called from
/// several threads at the same time. `overlap` and `footprint` are answered at once, without allocating or freeing memory: a
/// cache asks them with a lock that nobody may hold who waits for the program's memory.
pub trait Registrar: Send + Sync + 'static {
    /// What the device gave, and takes back in the end: keys, a device address.
    type Handle: Send + Sync + 'static;

    /// The part of it that requests are made with, copied: a hit of a cache has it at hand.
    /// Small: each thread that uses a cache has room for two of them for each registration. `()` where there is none.
    type Key: Copy + Send + Sync + 'static;

    /// For messages: `mlock`, `cuda 0`, `mlx5_0`.
    fn name(&self) -> String;

    /// Returns the name for `hostbuf stat`, which shows at most 23 bytes of it.
    fn stat_name(&self) -> String {
        self.name()
    }

    /// Whether its registrations may overlap.
    fn overlap(&self) -> Overlap;

    /// How many bytes of a budget `span` takes: what the device pins for it.
    fn footprint(&self, span: Span) -> usize {
        span.len()
    }

    /// The key of a registration, the same for as long as it lives. Answered at once; it must not panic.
    fn key(&self, handle: &Self::Handle) -> Self::Key;

    /// Registers all of `span`.
    ///
    /// # Errors
    /// [`Error::Registration`](crate::Error::Registration) with the operands and what the device said.
    fn register(&self, span: Span, access: Access) -> Result<Self::Handle>;

    /// Ends a registration.
    ///
    /// # Errors
    /// [`Error::Registration`](crate::Error::Registration): the device keeps it; what was pinned may stay so until the process
    /// ends.
    fn deregister(&self, span: Span, handle: Self::Handle) -> Result<()>;
}

/// Proof that a device knows a range: it ends with this. It owns its registrar, and, where the memory is hostbuf's, the
/// memory, so deregistration always comes before unmapping.
///
/// It belongs to the process that made it. In a forked child dropping it does nothing, since the device would end the
/// parent's.
pub struct Registration<R: Registrar> {
    registrar: Arc<R>,
    handle: Option<R::Handle>,
    span: Span,
    access: Access,
    lineage: Lineage,
    memory: Option<Arc<dyn Send + Sync>>,
}

impl<R: Registrar> Registration<R> {
    /// Registers `span`. Memory that is not hostbuf's must stay mapped for as long as this lives.
    ///
    /// # Errors
    /// As [`Registrar::register`].
    pub fn new(registrar: &Arc<R>, span: Span, access: Access) -> Result<Registration<R>> {
        Registration::keeping(registrar, span, access, None)
    }

    pub(crate) fn keeping(
        registrar: &Arc<R>,
        span: Span,
        access: Access,
        memory: Option<Arc<dyn Send + Sync>>,
    ) -> Result<Registration<R>> {
        let handle = registrar.register(span, access)?;
        let registrar = registrar.clone();
        Ok(Registration { registrar, handle: Some(handle), span, access, lineage: Lineage::here(), memory })
    }

    /// What the device gave.
    ///
    /// # Panics
    /// Never: the handle goes with the registration.
    #[must_use]
    pub fn handle(&self) -> &R::Handle {
        self.handle.as_ref().expect("it is there until the end")
    }

    /// What requests are made with.
    #[must_use]
    pub fn key(&self) -> R::Key {
        self.registrar.key(self.handle())
    }

    /// The registered range.
    #[must_use]
    pub fn span(&self) -> Span {
        self.span
    }

    /// What the device may do with it.
    #[must_use]
    pub fn access(&self) -> Access {
        self.access
    }

    /// Ends it, and says whether that went well; dropping only logs it.
    ///
    /// # Errors
    /// As [`Registrar::deregister`].
    pub fn deregister(mut self) -> Result<()> {
        self.end()
    }

    fn end(&mut self) -> Result<()> {
        match self.handle.take() {
            Some(handle) if self.lineage.is_here() => {
                let result = self.registrar.deregister(self.span, handle);
                if result.is_err() {
                    // The device may have it still: then it stays mapped, and is not frozen under it.
                    std::mem::forget(self.memory.take());
                }
                result
            }
            Some(handle) => {
                // The parent's: neither ended nor freed here.
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
            tracing::error!(%error, "a registration could not be ended");
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
