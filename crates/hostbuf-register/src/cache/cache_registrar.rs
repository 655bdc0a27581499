//! The cache's registrar, which registers only with a [`Reserved`] slot.

use std::sync::Arc;

use super::reserve::Reserved;
use crate::error::{Error, Result};
use crate::memory::Memory;
use crate::properties::{Overlap, RegistrarProperties};
use crate::registrar::Registrar;
use crate::span::{Access, Span};
use hostbuf_os::Bytes;

/// A registrar that cannot register while the cache's lock is held:
/// [`register`](CacheRegistrar::register) takes the proof that it has been released.
pub(super) struct CacheRegistrar<R> {
    registrar: Arc<R>,
    /// A copy, so that the cache does not call foreign code under its lock.
    properties: RegistrarProperties,
}

impl<R: Registrar> CacheRegistrar<R> {
    /// Wraps a registrar.
    ///
    /// # Errors
    /// [`Error::Invalid`] for invalid properties.
    pub(super) fn new(registrar: Arc<R>) -> Result<CacheRegistrar<R>> {
        let properties = registrar.properties().check(&registrar.name())?;
        Ok(CacheRegistrar { registrar, properties })
    }

    /// Returns the registrar for its owner, the user of the cache.
    pub(super) fn of_user(&self) -> &Arc<R> {
        &self.registrar
    }

    /// Returns the name of the device.
    pub(super) fn name(&self) -> String {
        self.registrar.name()
    }

    /// Returns whether the device supports overlapping registrations.
    pub(super) fn allows_overlap(&self) -> bool {
        self.properties.overlap == Overlap::Free
    }

    /// Returns the number of bytes that the device pins for `span`.
    pub(super) fn footprint(&self, span: Span) -> usize {
        self.properties.footprint(span)
    }

    /// Returns whether the device registers ranges as long as `span`.
    #[inline]
    pub(super) fn is_short_enough(&self, span: Span) -> bool {
        span.len() <= self.properties.longest
    }

    /// Makes the error for a request that is longer than the longest range of the device.
    #[cold]
    pub(super) fn too_long(&self, span: Span, access: Access) -> Error {
        let longest = Bytes(self.properties.longest as u64);
        let why = format!("the device registers at most {longest} at once: request shorter ranges");
        Error::Registration { device: self.name(), memory: span.into(), access, why, source: None }
    }

    /// Returns the key of a registration.
    #[inline]
    pub(super) fn key(&self, handle: &R::Handle) -> R::Key {
        self.registrar.key(handle)
    }

    /// Registers the range of a reserved slot with the device.
    ///
    /// # Errors
    /// As [`Registrar::register`].
    pub(super) fn register(&self, reserved: &Reserved<'_, R::Handle>) -> Result<R::Handle> {
        self.registrar.register(&Memory::Host(reserved.span()), reserved.access())
    }

    /// Ends a registration.
    ///
    /// # Errors
    /// As [`Registrar::deregister`].
    pub(super) fn deregister(&self, span: Span, handle: R::Handle) -> Result<()> {
        self.registrar.deregister(&Memory::Host(span), handle)
    }
}
