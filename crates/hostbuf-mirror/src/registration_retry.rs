//! The times at which a device that has refused memory is asked again.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use hostbuf_os::poison::IgnorePoison;

/// The refusals in a row after which a device is not asked for a while.
const MAX_REFUSALS: u32 = 2;
/// The time for which it is not asked: a host that lacks memory now may have it later.
const PAUSE: Duration = Duration::from_secs(5);

/// The times at which a device that has refused memory is asked again.
#[derive(Debug, Default)]
pub(crate) struct RegistrationRetry {
    /// The number of refusals in a row, and the time of the last one.
    refusals: Mutex<(u32, Option<Instant>)>,
}

impl RegistrationRetry {
    /// Returns whether the device shall be asked.
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        let (refusals, last) = *self.refusals.lock().ignore_poison();
        refusals < MAX_REFUSALS || last.is_none_or(|last| now.saturating_duration_since(last) >= PAUSE)
    }

    /// Notes that the device has refused memory.
    pub(crate) fn refuse(&self, now: Instant) {
        let mut state = self.refusals.lock().ignore_poison();
        *state = (state.0.saturating_add(1), Some(now));
    }

    /// Notes that the device has registered memory.
    pub(crate) fn accept(&self) {
        *self.refusals.lock().ignore_poison() = (0, None);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::{PAUSE, RegistrationRetry};

    #[test]
    fn a_refused_registration_is_tried_again_at_once_and_then_after_a_pause() {
        let (retry, now) = (RegistrationRetry::default(), Instant::now());
        assert!(retry.is_due(now));
        retry.refuse(now);
        assert!(retry.is_due(now));
        retry.refuse(now);
        assert!(!retry.is_due(now) && !retry.is_due(now + PAUSE / 2) && retry.is_due(now + PAUSE));
        // Each further refusal begins a pause.
        retry.refuse(now + PAUSE);
        assert!(!retry.is_due(now + PAUSE) && retry.is_due(now + 2 * PAUSE));
        retry.accept();
        retry.refuse(now + 2 * PAUSE);
        assert!(retry.is_due(now + 2 * PAUSE));
    }
}
