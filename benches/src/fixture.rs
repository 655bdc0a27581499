//! The parts that several benchmarks share: their result, and a cache over a registrar that does
//! nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use hostbuf::register::{
    Access, Budget, Memory, MonitorMode, Overlap, Registrar, RegistrarProperties, RegistrationCache,
};

/// The result of a benchmark.
pub(crate) type BenchResult = Result<(), Box<dyn std::error::Error>>;

/// A registrar that does nothing, so that only the cache costs time. While the gate is closed its
/// calls wait.
#[derive(Default)]
pub(crate) struct Idle {
    made: AtomicU64,
    pub(crate) closed: AtomicBool,
    pub(crate) waiting: AtomicBool,
}

impl Registrar for Idle {
    type Handle = u64;
    type Key = u64;

    fn name(&self) -> String {
        "idle".into()
    }

    fn properties(&self) -> RegistrarProperties {
        RegistrarProperties::new(Overlap::Free)
    }

    fn key(&self, made: &u64) -> u64 {
        *made
    }

    fn register(&self, _: &Memory, _: Access) -> hostbuf::register::Result<u64> {
        while self.closed.load(Ordering::Acquire) {
            self.waiting.store(true, Ordering::Release);
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(self.made.fetch_add(1, Ordering::Relaxed))
    }

    fn deregister(&self, _: &Memory, _: u64) -> hostbuf::register::Result<()> {
        Ok(())
    }
}

pub(crate) type BenchCache = RegistrationCache<Idle>;

pub(crate) fn cache(budget: Budget, monitor: MonitorMode) -> hostbuf::register::Result<BenchCache> {
    RegistrationCache::new(Arc::new(Idle::default()), budget, monitor)
}
