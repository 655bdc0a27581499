//! The cache's registrar, which registers only with a [`Reserved`] slot.

use std::sync::Arc;

use super::reserve::Reserved;
use crate::error::Result;
use crate::registrar::{Overlap, Registrar};
use crate::span::Span;

/// A registrar that cannot register while the cache's lock is held:
/// [`register`](CacheRegistrar::register) takes the proof that it has been released.
pub(super) struct CacheRegistrar<R>(Arc<R>);

impl<R: Registrar> CacheRegistrar<R> {
    /// Wraps a registrar.
    pub(super) fn new(registrar: Arc<R>) -> CacheRegistrar<R> {
        CacheRegistrar(registrar)
    }

    /// Returns the registrar for its owner, the user of the cache.
    pub(super) fn of_user(&self) -> &Arc<R> {
        &self.0
    }

    /// Returns the name of the device.
    pub(super) fn name(&self) -> String {
        self.0.name()
    }

    /// Returns whether the device supports overlapping registrations.
    pub(super) fn allows_overlap(&self) -> bool {
        self.0.overlap() == Overlap::Free
    }

    /// Returns the number of bytes that the device pins for `span`.
    pub(super) fn footprint(&self, span: Span) -> usize {
        self.0.footprint(span)
    }

    /// Returns the key of a registration.
    #[inline]
    pub(super) fn key(&self, handle: &R::Handle) -> R::Key {
        self.0.key(handle)
    }

    /// Registers the range of a reserved slot with the device.
    ///
    /// # Errors
    /// As [`Registrar::register`].
    pub(super) fn register(&self, reserved: &Reserved<'_, R::Handle>) -> Result<R::Handle> {
        self.0.register(reserved.span(), reserved.access())
    }

    /// Ends a registration.
    ///
    /// # Errors
    /// As [`Registrar::deregister`].
    pub(super) fn deregister(&self, span: Span, handle: R::Handle) -> Result<()> {
        self.0.deregister(span, handle)
    }
}
