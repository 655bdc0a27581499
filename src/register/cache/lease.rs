//! The hold that users have on a registration.

#![allow(unsafe_code)]

use std::fmt;
use std::marker::PhantomData;

use super::RegistrationCache;
use super::inner::Inner;
use crate::register::registrar::Registrar;
use crate::span::{Access, Span};

/// A hold on a registration: while it lives the registration does, whatever happens to its memory.
///
/// It may be dropped by another thread than took it. It is not `Clone`: ask the cache again, a hit costs next to nothing.
pub struct Lease<'c, R: Registrar> {
    pub(super) inner: &'c Inner<R>,
    pub(super) slot: u32,
    pub(super) key: R::Key,
    pub(super) cache: PhantomData<&'c RegistrationCache<R>>,
}

impl<R: Registrar> Lease<'_, R> {
    /// What one sends with, at hand without a look at what the cache shares between threads.
    #[must_use]
    #[inline]
    pub fn key(&self) -> R::Key {
        self.key
    }

    /// All that the device gave.
    #[must_use]
    #[inline]
    pub fn handle(&self) -> &R::Handle {
        // SAFETY: this is a lease of it.
        unsafe { self.inner.slots[self.slot as usize].handle() }
    }

    /// The registered range, which may be longer than what was asked for.
    #[must_use]
    pub fn span(&self) -> Span {
        self.inner.slots[self.slot as usize].span()
    }

    /// What the device may do with it.
    #[must_use]
    pub fn access(&self) -> Access {
        self.inner.slots[self.slot as usize].access()
    }
}

impl<R: Registrar> Drop for Lease<'_, R> {
    #[inline(always)]
    fn drop(&mut self) {
        self.inner.give(self.slot);
    }
}

impl<R: Registrar> fmt::Debug for Lease<'_, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lease({}, {})", self.span(), self.access())
    }
}
