//! The thread that ends what nobody leases any more: the monitor may not, since a registrar may do anything.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use nix::sys::signal::SigSet;

use super::{Inner, LOOK};
use crate::error::{Error, Result};
use crate::register::registrar::Registrar;

/// How often leases are added up: a slot's count of 32 bits does not go round in that time.
const FOLD: Duration = Duration::from_secs(5);
/// From how many evictions in that time, and from which share of all requests, a budget is called small.
const MANY: u64 = 1000;

pub(super) struct Reaper {
    thread: Option<JoinHandle<()>>,
    stop: Box<dyn Fn() + Send + Sync>,
}

impl Reaper {
    pub(super) fn start<R: Registrar>(inner: Arc<Inner<R>>) -> Result<Reaper> {
        let of_thread = inner.clone();
        let thread = std::thread::Builder::new().name("hostbuf-reaper".into()).spawn(move || {
            // The application's signals are for its own threads.
            let _ = SigSet::all().thread_block();
            run(&of_thread);
        });
        let thread = thread.map_err(Error::os("starting the thread that ends registrations"))?;
        Ok(Reaper { thread: Some(thread), stop: Box::new(move || inner.changed.notify_all()) })
    }
}

fn run<R: Registrar>(inner: &Inner<R>) {
    let (mut evictions, mut requests, mut warned) = (0, 0, false);
    let mut folded = std::time::Instant::now();
    while !inner.closing.load(Ordering::Relaxed) {
        if let Err(error) = inner.end_stale() {
            tracing::error!(%error, "a registration could not be ended");
        }
        if folded.elapsed() >= FOLD {
            folded = std::time::Instant::now();
            let stats = inner.stats();
            let (more, of) = (stats.evictions - evictions, stats.hits + stats.misses - requests);
            (evictions, requests) = (stats.evictions, stats.hits + stats.misses);
            if !warned && more >= MANY && more * 2 > of {
                warned = true;
                tracing::warn!(
                    device = inner.registrar.name(),
                    regions = stats.regions,
                    bytes = stats.bytes,
                    "more than half of all requests end another registration: the budget is smaller than what is \
                     used in turn; raise HOSTBUF_CACHE_REGIONS or HOSTBUF_CACHE_BYTES"
                );
            }
        }
        let core = inner.lock();
        let pause = if core.stale.is_empty() { FOLD } else { LOOK };
        // It is woken by every change, and looks anyhow.
        drop(inner.changed.wait_timeout(core, pause).unwrap_or_else(PoisonError::into_inner));
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
            let _ = thread.join();
        }
    }
}
