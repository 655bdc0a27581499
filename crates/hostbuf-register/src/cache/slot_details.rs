//! The part of a registration that no hit reads. The cache's lock guards it.

use std::sync::Arc;

use crate::span::Span;

/// The details of a registration beside its range and its access.
#[derive(Clone, Default)]
pub(super) struct SlotDetails {
    /// The bytes that it takes of the budget.
    pub(super) bytes: usize,
    /// The owner of its memory, which stays mapped until the device has deregistered it.
    pub(super) memory: Option<Arc<dyn Send + Sync>>,
    /// The range of the request that made it.
    pub(super) requested: Option<Span>,
    /// The failure of its deregistration, if its slot is Leaked.
    pub(super) leak: Option<Leak>,
}

/// A failed deregistration.
#[derive(Clone)]
pub(super) struct Leak {
    /// The value of `Stats::leaked` with this leak counted.
    pub(super) number: u64,
    /// The device's answer, if it gave one. A clone of it allocates nothing, which the lock
    /// forbids.
    pub(super) why: Option<Arc<str>>,
}
