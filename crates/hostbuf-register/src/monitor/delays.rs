//! Delays inside the monitor, so that a test meets the interleaving that it is about.
//!
//! A delay belongs to the process's monitor, which lives as long as a cache with a strict monitor,
//! and it lasts until it is set to zero. Without a monitor these functions do nothing.

use std::time::Duration;

use super::current;
use super::monitor_shared::TestDelays;

/// Delays the reading of events.
pub fn delay_events(time: Duration) {
    set(|delays| delays.events.set(time));
}

/// Delays the notification of caches after the monitor has read an event.
pub fn delay_notifications(time: Duration) {
    set(|delays| delays.notifications.set(time));
}

/// Pauses requests after their memory has been watched.
pub fn pause_requests(time: Duration) {
    set(|delays| delays.requests.set(time));
}

fn set(change: impl FnOnce(&TestDelays)) {
    if let Ok(monitor) = current::acquire() {
        change(monitor.delays());
        current::release(monitor);
    }
}
