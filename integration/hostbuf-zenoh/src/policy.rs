//! zenoh's allocation policy.

#![allow(unsafe_code, reason = "zenoh's collection of chunks that nobody confirms is unsafe")]

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use zenoh::shm::{AllocPolicy, ChunkAllocResult, JustAlloc, MemoryLayout, ShmProvider};

use crate::backend::PoolBackend;

/// The smallest time between two collections of chunks that nobody confirms. zenoh takes up to 200
/// ms to see that none does.
const CONFIRM_INTERVAL: Duration = Duration::from_millis(100);

/// The policy of a [`PoolProvider`](crate::PoolProvider): collect if there is no free block. After
/// a process has ended that held blocks, it also removes their chunks from zenoh's list.
#[derive(Clone, Debug)]
pub struct PoolPolicy {
    backend: PoolBackend,
    next_confirm: Arc<Mutex<Instant>>,
}

impl PoolPolicy {
    /// Makes the policy for the provider of `backend`.
    #[must_use]
    pub fn new(backend: &PoolBackend) -> PoolPolicy {
        PoolPolicy { backend: backend.clone(), next_confirm: Arc::new(Mutex::new(Instant::now())) }
    }

    fn is_time_to_confirm(&self) -> bool {
        if !self.backend.has_stale_chunks() {
            return false;
        }
        // Another thread does it.
        let Ok(mut next) = self.next_confirm.try_lock() else { return false };
        let is_time = *next <= Instant::now();
        if is_time {
            *next = Instant::now() + CONFIRM_INTERVAL;
        }
        is_time
    }
}

impl AllocPolicy<PoolBackend> for PoolPolicy {
    fn alloc(&self, layout: &MemoryLayout, provider: &ShmProvider<PoolBackend>) -> ChunkAllocResult {
        if self.is_time_to_confirm() {
            // SAFETY: the backend reuses no block that this process refers to, or that a living
            // process holds in the pool.
            unsafe { provider.garbage_collect_unsafe() };
        }
        JustAlloc.alloc(layout, provider).or_else(|_| {
            provider.garbage_collect();
            JustAlloc.alloc(layout, provider)
        })
    }
}
