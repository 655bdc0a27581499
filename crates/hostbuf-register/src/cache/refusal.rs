//! The reasons why a request cannot be met.

use super::budget::Budget;
use crate::error::Error;
use crate::span::{Access, Span};

/// The reason why a request cannot be met. It is made under the cache's lock, so it owns no memory.
#[derive(Clone, Copy)]
pub(super) enum MissRefusal {
    /// The budget has no room.
    Budget {
        /// The number of registrations at that time.
        registrations: usize,
        /// The number of registered bytes at that time.
        bytes: usize,
        /// True if the request would fit into the budget without the leased registrations.
        leased: bool,
    },
    /// Another registration overlaps the range. It may be valid for the request, which is unknown
    /// if the memory is busy.
    Overlap {
        /// The range of the other registration.
        other: Span,
        /// True if the memory is busy.
        busy: bool,
    },
    /// The time was over while another thread registered the same range.
    TimedOut,
}

impl MissRefusal {
    /// Makes the error for people. It allocates, so the caller does not hold the cache's lock.
    pub(super) fn into_error(self, device: String, budget: Budget, span: Span, access: Access) -> Error {
        let why = match self {
            MissRefusal::Budget { registrations, bytes, leased } => {
                let (registrations, bytes) = ((registrations, budget.registrations), (bytes, budget.bytes));
                return Error::Budget { device, span, registrations, bytes, leased };
            }
            MissRefusal::TimedOut => {
                "the timeout expired while another thread was registering the same range".to_owned()
            }
            MissRefusal::Overlap { other, busy: true } => format!(
                "{other} is registered and in use, this device supports no overlapping registrations, and other threads \
                 change memory of the same mapping without a pause, so the cache cannot tell whether that registration is \
                 still valid: repeat the request, or send from memory with its own mapping (PinnedAlloc)"
            ),
            MissRefusal::Overlap { other, busy: false } => format!(
                "{other} is registered and in use, and this device supports no overlapping registrations: drop the leases of \
                 that range first"
            ),
        };
        Error::Registration { device, memory: span.into(), access, why, source: None }
    }
}
