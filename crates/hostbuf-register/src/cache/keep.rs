//! Exempts registrations from eviction.

use std::time::Instant;

use super::miss::get;
use super::shared::CacheShared;
use super::slot::SlotState;
use super::wait::{BUSY_TIMEOUT, WaitMode};
use crate::error::{Error, Result};
use crate::monitor::Unwatched;
use crate::own_ranges;
use crate::registrar::Registrar;
use crate::span::{Access, Span};

/// Registers `span` unless it is registered, and exempts the registration from eviction.
///
/// # Errors
/// As [`get`]; [`Error::Registration`] for memory that is registered for its leases only.
pub(super) fn keep<R: Registrar>(shared: &CacheShared<R>, span: Span, access: Access) -> Result<()> {
    let begun = Instant::now();
    loop {
        let lease = get(shared, span, access, WaitMode::Progress)?;
        let here = &shared.slots[lease.slot()];
        let is_own = own_ranges::find(span).is_some();
        let mut state = shared.lock();
        if here.state() == SlotState::Live {
            state.policy.remove(lease.slot());
            here.keep();
            return Ok(());
        }
        // Without the lock, which the monitor takes too.
        drop(state);
        // The memory has changed since, or may be quiet soon.
        let can_be_kept = here.is_watched() || shared.monitor.is_none() || is_own;
        if can_be_kept && begun.elapsed() < BUSY_TIMEOUT {
            continue;
        }
        if begun.elapsed() < BUSY_TIMEOUT && may_be_watched(shared, span) {
            std::thread::yield_now();
            continue;
        }
        let why = match can_be_kept {
            true => "this memory changes without a pause, so its registration cannot be kept beyond a lease",
            false => {
                "nothing reports changes of this memory, so its registration cannot be kept beyond a lease"
            }
        };
        let (device, why) = (shared.registrar.name(), why.to_owned());
        return Err(Error::Registration { device, memory: span.into(), access, why, source: None });
    }
}

/// Returns whether memory is watched, or may be watched soon.
fn may_be_watched<R: Registrar>(shared: &CacheShared<R>, span: Span) -> bool {
    let monitor = shared.monitor.as_ref();
    monitor.is_some_and(|monitor| matches!(monitor.watch(span), Ok(_) | Err(Unwatched::Busy)))
}
