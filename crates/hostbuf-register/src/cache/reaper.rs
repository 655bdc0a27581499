//! The reaper, a thread that deregisters stale registrations without leases: the monitor's thread
//! may not, since a registrar may allocate and unmap.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use nix::sys::signal::SigSet;

use super::deregister::deregister_stale;
use super::shared::CacheShared;
use super::stats::Stats;
use super::wait::RECHECK;
use crate::error::{Error, Result};
use crate::registrar::Registrar;
use hostbuf_os::thread::{self, Thread};

/// The time after which leases are added up: the 32-bit count of a slot does not wrap around in
/// that time.
const FOLD_INTERVAL: Duration = Duration::from_secs(5);
/// The number of evictions in [`FOLD_INTERVAL`] from which on a budget may count as too small.
const MANY_EVICTIONS: u64 = 1000;

/// The reaper of a cache. Dropping it ends the thread.
pub(super) struct Reaper {
    thread: Option<Thread>,
    wake: Box<dyn Fn() + Send + Sync>,
}

impl Reaper {
    /// Starts the reaper of a cache.
    ///
    /// # Errors
    /// [`Error::Os`] if no thread can be started.
    pub(super) fn start<R: Registrar>(shared: Arc<CacheShared<R>>) -> Result<Reaper> {
        let for_thread = shared.clone();
        let thread = thread::spawn(c"hostbuf-reaper", move || {
            // The application's signals are for its own threads.
            let _ = SigSet::all().thread_block();
            run(&for_thread);
        });
        let thread = thread.map_err(Error::os("starting the thread that ends registrations"))?;
        Ok(Reaper { thread: Some(thread), wake: Box::new(move || shared.state.stop_reaper()) })
    }
}

/// A detector of a budget that is smaller than the working set: more than half of the requests
/// evict a registration. It reports once.
#[derive(Default)]
struct BudgetPressure {
    evictions: u64,
    requests: u64,
    reported: bool,
}

impl BudgetPressure {
    /// Returns whether the statistics since the last call show a budget that is too small, for the
    /// first time.
    fn detects_pressure(&mut self, stats: &Stats) -> bool {
        let requests = stats.hits + stats.misses;
        let (evicted, requested) =
            (stats.evictions.saturating_sub(self.evictions), requests.saturating_sub(self.requests));
        (self.evictions, self.requests) = (stats.evictions, requests);
        let is_detected = !self.reported && evicted >= MANY_EVICTIONS && evicted * 2 > requested;
        self.reported |= is_detected;
        is_detected
    }
}

fn run<R: Registrar>(shared: &CacheShared<R>) {
    let mut pressure = BudgetPressure::default();
    let mut folded = Instant::now();
    let mut pause = RECHECK;
    while !shared.closing.load(Ordering::Relaxed) {
        let before = shared.lock().lists.stale().len();
        if let Err(error) = deregister_stale(shared) {
            tracing::error!(%error, "a deregistration has failed");
        }
        if folded.elapsed() >= FOLD_INTERVAL {
            folded = Instant::now();
            let stats = shared.stats();
            if pressure.detects_pressure(&stats) {
                tracing::warn!(
                    device = shared.registrar.name(),
                    registrations = stats.registrations,
                    bytes = stats.bytes,
                    "more than half of all requests evict another registration, so the budget is smaller than the working \
                     set: raise HOSTBUF_CACHE_REGISTRATIONS or HOSTBUF_CACHE_BYTES"
                );
            }
        }
        let state = shared.lock();
        // A lease that was dropped while its slot became stale may have been missed: the next pass
        // finds it. A lease that is held for long deregisters its slot itself, so the passes become
        // rare.
        pause = match (state.lists.stale().len(), before) {
            (0, 0) => FOLD_INTERVAL,
            (now, before) if now != before => RECHECK,
            _ => (2 * pause).clamp(RECHECK, FOLD_INTERVAL),
        };
        // Changes come in bursts, and a changing thread should not pay for a wake-up each time, so
        // the reaper is woken only from a long sleep.
        if !shared.state.sleep_as_reaper(state, pause, pause > RECHECK) {
            pause = RECHECK;
        }
    }
}

impl Drop for Reaper {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            // A wake-up between the thread's check of `closing` and its sleep is lost, so it is
            // repeated.
            while !thread.is_finished() {
                (self.wake)();
                std::thread::sleep(Duration::from_micros(50));
            }
            thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_that_is_too_small_is_reported_once() {
        let stats = |hits, misses, evictions| Stats { hits, misses, evictions, ..Stats::default() };
        let mut pressure = BudgetPressure::default();
        assert!(!pressure.detects_pressure(&stats(0, MANY_EVICTIONS - 1, MANY_EVICTIONS - 1)), "few");
        assert!(
            !pressure.detects_pressure(&stats(2 * MANY_EVICTIONS, 3 * MANY_EVICTIONS, 2 * MANY_EVICTIONS)),
            "mostly hits"
        );
        assert!(pressure.detects_pressure(&stats(
            2 * MANY_EVICTIONS,
            6 * MANY_EVICTIONS,
            5 * MANY_EVICTIONS
        )));
        assert!(
            !pressure.detects_pressure(&stats(2 * MANY_EVICTIONS, 9 * MANY_EVICTIONS, 8 * MANY_EVICTIONS)),
            "it has been reported"
        );
        // Counts that are read during a request may decrease a little.
        let mut pressure = BudgetPressure { requests: 10, ..BudgetPressure::default() };
        assert!(!pressure.detects_pressure(&stats(5, 0, 0)));
    }
}
