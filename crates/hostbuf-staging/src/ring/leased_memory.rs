//! Memory of a ring that a registration cache has registered.

#![allow(unsafe_code, reason = "keeps a lease beside its cache, and declares memory as an own range")]

use std::mem::transmute;
use std::sync::{Arc, Weak};

use hostbuf_register::own_ranges::{self, OwnRange};
use hostbuf_register::{Access, Error, Lease, Registrar, RegistrationCache, Span};

/// Memory that a cache has registered, with the lease that keeps it registered. The fields are
/// dropped in this order.
pub(super) struct LeasedMemory<R: Registrar> {
    /// `None` once the object is dropped.
    lease: Option<Lease<'static, R>>,
    _own: OwnRange,
    /// The cache of the lease, which must not be replaced while there is one.
    cache: Arc<RegistrationCache<R>>,
    span: Span,
    _memory: Arc<dyn Send + Sync>,
}

impl<R: Registrar> LeasedMemory<R> {
    /// Lets `cache` register `span` for copies in both directions.
    ///
    /// # Errors
    /// As [`RegistrationCache::get`]: [`Error::Budget`] if there is no room for it.
    ///
    /// # Safety
    /// `memory` keeps the mapping of `span`, and nothing discards its pages.
    pub(super) unsafe fn new(
        cache: &Arc<RegistrationCache<R>>,
        span: Span,
        memory: Arc<dyn Send + Sync>,
    ) -> Result<LeasedMemory<R>, Error> {
        let keeper: Weak<dyn Send + Sync> = Arc::downgrade(&memory);
        // SAFETY: the caller guarantees the mapping.
        let own = unsafe { own_ranges::declare(span, keeper) };
        let cache = cache.clone();
        let lease = cache.get(span.start() as *const u8, span.len(), Access::WRITE)?;
        // SAFETY: the object keeps the cache, which does not move with it, longer than the lease.
        let lease = unsafe { transmute::<Lease<'_, R>, Lease<'static, R>>(lease) };
        Ok(LeasedMemory { lease: Some(lease), _own: own, cache, span, _memory: memory })
    }
}

impl<R: Registrar> Drop for LeasedMemory<R> {
    fn drop(&mut self) {
        drop(self.lease.take());
        // Nobody will ask for this memory again, so the registration need not wait for an eviction.
        if let Err(error) = self.cache.invalidate(self.span) {
            tracing::warn!(%error, span = %self.span, "the memory of a ring stays registered");
        }
    }
}
