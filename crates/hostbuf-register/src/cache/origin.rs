//! The origin of memory, which decides how long a registration of it may be kept.

use std::sync::Arc;

use crate::monitor::{DescriptorSet, MonitorHandle, Unwatched, Watched};
use crate::own_ranges;
use crate::span::Span;

/// The origin of the memory of a request.
pub(super) enum MemoryOrigin {
    /// Memory of hostbuf, which the registration keeps mapped, and the whole range of it.
    Own(Arc<dyn Send + Sync>, Span),
    /// Foreign memory whose changes the program reports.
    Explicit,
    /// Foreign memory that the monitor watches, with all earlier changes applied.
    Watched(Watched),
    /// Foreign memory whose changes are not reported: it is registered for its leases only.
    Unwatched(Unwatched),
}

impl MemoryOrigin {
    /// Determines the origin of `span`, and has foreign memory watched. The caller does not hold
    /// the cache's lock.
    #[inline]
    pub(super) fn of(span: Span, monitor: Option<&MonitorHandle>) -> MemoryOrigin {
        if let Some((whole, memory)) = own_ranges::find(span) {
            return MemoryOrigin::Own(memory, whole);
        }
        match monitor {
            None => MemoryOrigin::Explicit,
            Some(monitor) => match monitor.watch(span) {
                Ok(watched) => MemoryOrigin::Watched(watched),
                Err(why) => MemoryOrigin::Unwatched(why),
            },
        }
    }

    /// Returns the descriptors whose earlier changes had been applied when the origin was
    /// determined.
    pub(super) fn settled(&self) -> DescriptorSet {
        match self {
            MemoryOrigin::Watched(watched) => watched.descriptors,
            _ => DescriptorSet::EMPTY,
        }
    }

    /// Returns the range within which more than the request may be registered.
    pub(super) fn room(&self) -> Option<Span> {
        match self {
            MemoryOrigin::Own(_, whole) => Some(*whole),
            MemoryOrigin::Watched(watched) => watched.around,
            MemoryOrigin::Explicit | MemoryOrigin::Unwatched(_) => None,
        }
    }

    /// Returns whether the monitor could not watch the memory because it is busy.
    pub(super) fn is_busy(&self) -> bool {
        matches!(self, MemoryOrigin::Unwatched(Unwatched::Busy))
    }
}
