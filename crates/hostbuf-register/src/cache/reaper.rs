//! The thread that ends what nobody leases any more: the monitor may not, since a registrar may do anything.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use nix::sys::signal::SigSet;

use super::shared::{CacheShared, RECHECK};
use super::stats::Stats;
use crate::error::{Error, Result};
use crate::os::thread::{self, Thread};
use crate::register::poison::IgnorePoison;
use crate::register::registrar::Registrar;

/// How often leases are added up: a slot's count of 32 bits does not go round in that time.
const FOLD: Duration = Duration::from_secs(5);
/// From how many evictions in that time, and from which share of all requests, a budget is called small.
const MANY: u64 = 1000;

pub(super) struct Reaper {
    thread: Option<Thread>,
    stop: Box<dyn Fn() + Send + Sync>,
}

impl Reaper {
    pub(super) fn start<R: Registrar>(shared: Arc<CacheShared<R>>) -> Result<Reaper> {
        let for_thread = shared.clone();
        let thread = thread::spawn(c"hostbuf-reaper", move || {
            // The application's signals are for its own threads.
            let _ = SigSet::all().thread_block();
            run(&for_thread);
        });
        let thread = thread.map_err(Error::os("starting the thread that ends registrations"))?;
        Ok(Reaper { thread: Some(thread), stop: Box::new(move || shared.apart.stale.notify_all()) })
    }
}

/// Whether a budget is smaller than what is used in turn: looked at now and then, told once.
#[derive(Default)]
struct BudgetPressure {
    evictions: u64,
    requests: u64,
    told: bool,
}

impl BudgetPressure {
    /// Whether it shows in what has been done since the last look, for the first time.
    fn shows_first(&mut self, stats: &Stats) -> bool {
        let requests = stats.hits + stats.misses;
        let (more, of) =
            (stats.evictions.saturating_sub(self.evictions), requests.saturating_sub(self.requests));
        (self.evictions, self.requests) = (stats.evictions, requests);
        let shows = !self.told && more >= MANY && more * 2 > of;
        self.told |= shows;
        shows
    }
}

fn run<R: Registrar>(shared: &CacheShared<R>) {
    let mut shortage = BudgetPressure::default();
    let mut folded = std::time::Instant::now();
    let mut pause = RECHECK;
    while !shared.closing.load(Ordering::Relaxed) {
        let before = shared.lock().stale.len();
        if let Err(error) = shared.deregister_stale() {
            tracing::error!(%error, "a registration could not be ended");
        }
        if folded.elapsed() >= FOLD {
            folded = std::time::Instant::now();
            let stats = shared.stats();
            if shortage.shows_first(&stats) {
                tracing::warn!(
                    device = shared.registrar.name(),
                    regions = stats.regions,
                    bytes = stats.bytes,
                    "more than half of all requests end another registration: the budget is smaller than what is \
                     used in turn; raise HOSTBUF_CACHE_REGIONS or HOSTBUF_CACHE_BYTES"
                );
            }
        }
        let mut state = shared.lock();
        // A lease that ended while its slot became stale may not have been seen: it is at the next look, or the one after. What is
        // leased for long is ended by who drops it, so the looks become rare.
        pause = match (state.stale.len(), before) {
            (0, 0) => FOLD,
            (now, before) if now != before => RECHECK,
            _ => (2 * pause).clamp(RECHECK, FOLD),
        };
        // Changes come in bursts: whoever makes them is not to pay for a wake each time.
        state.reaper_sleeps = pause > RECHECK;
        let (state, waited) = shared.apart.stale.wait_timeout(state, pause).ignore_poison();
        drop(state);
        if !waited.timed_out() {
            pause = RECHECK;
        }
    }
}

impl Drop for Reaper {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            // A wake that comes between its look and its sleep is lost; so again until it has heard.
            while !thread.is_finished() {
                (self.stop)();
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
        let mut shortage = BudgetPressure::default();
        assert!(!shortage.shows_first(&stats(0, MANY - 1, MANY - 1)), "few");
        assert!(!shortage.shows_first(&stats(2 * MANY, 3 * MANY, 2 * MANY)), "mostly hits");
        assert!(shortage.shows_first(&stats(2 * MANY, 6 * MANY, 5 * MANY)));
        assert!(!shortage.shows_first(&stats(2 * MANY, 9 * MANY, 8 * MANY)), "it has been told");
        // Counts that are read in the middle of something may go back a little.
        let mut shortage = BudgetPressure { requests: 10, ..BudgetPressure::default() };
        assert!(!shortage.shows_first(&stats(5, 0, 0)));
    }
}
