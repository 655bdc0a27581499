//! The range of the options that are times.

use std::time::Duration;

use crate::error::MirrorError;

/// The longest time that an option may have.
const LONGEST: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// Checks an option that is a time.
///
/// # Errors
/// [`MirrorError::Invalid`] for 0, and for more than 30 days.
pub(crate) fn check_time(name: &str, time: Duration) -> Result<(), MirrorError> {
    if !time.is_zero() && time <= LONGEST {
        return Ok(());
    }
    let what =
        format!("invalid {name} of {} s: expected more than 0, and at most 30 days", time.as_secs_f64());
    Err(MirrorError::Invalid { what })
}
