//! The thread that ends the holds of blocks whose buffers zenoh has dropped.

use std::io;
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::thread;
use std::time::Duration;

use crate::block_segment::{BlockSegment, MapObserver, SweptState};

/// The interval of sweeps while buffers exist.
const BUSY_INTERVAL: Duration = Duration::from_millis(10);
/// The interval otherwise, in which segments that have ended are unmapped.
const IDLE_INTERVAL: Duration = Duration::from_millis(500);

/// The blocks that this process has mapped for zenoh, and the thread that ends their holds: zenoh
/// does not tell when it drops a buffer, so the references are counted.
#[derive(Debug)]
pub(crate) struct HoldSweeper {
    shared: Arc<SweeperShared>,
}

#[derive(Debug, Default)]
struct SweeperShared {
    state: Mutex<SweeperState>,
    wake: Condvar,
}

#[derive(Debug, Default)]
struct SweeperState {
    blocks: Vec<Weak<BlockSegment>>,
    /// True if a block was mapped since the last sweep.
    is_busy: bool,
    is_stopped: bool,
}

impl HoldSweeper {
    /// Starts the thread.
    ///
    /// # Errors
    /// As `pthread_create(3)`.
    pub(crate) fn start() -> io::Result<Arc<HoldSweeper>> {
        let shared = Arc::new(SweeperShared::default());
        let of_thread = shared.clone();
        thread::Builder::new().name("hostbuf-zenoh".into()).spawn(move || of_thread.serve())?;
        Ok(Arc::new(HoldSweeper { shared }))
    }

    /// Adds a block.
    pub(crate) fn add(&self, block: &Arc<BlockSegment>) {
        self.shared.lock().blocks.push(Arc::downgrade(block));
    }
}

impl MapObserver for HoldSweeper {
    fn mapped(&self) {
        let mut state = self.shared.lock();
        if !state.is_busy {
            state.is_busy = true;
            self.shared.wake.notify_one();
        }
        let blocks: Vec<Arc<BlockSegment>> = state.blocks.iter().filter_map(Weak::upgrade).collect();
        drop(state);
        // At a high rate the producer needs the blocks of earlier messages before the next sweep.
        for block in blocks {
            block.sweep();
        }
    }
}

impl Drop for HoldSweeper {
    fn drop(&mut self) {
        self.shared.lock().is_stopped = true;
        self.shared.wake.notify_one();
    }
}

impl SweeperShared {
    fn lock(&self) -> std::sync::MutexGuard<'_, SweeperState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn serve(&self) {
        let mut state = self.lock();
        loop {
            if state.is_stopped {
                return;
            }
            if state.is_busy {
                // Blocks that are mapped meanwhile are swept, too.
                let pause = self.wake.wait_timeout_while(state, BUSY_INTERVAL, |state| !state.is_stopped);
                state = pause.unwrap_or_else(PoisonError::into_inner).0;
            } else {
                let idle = |state: &mut SweeperState| !state.is_stopped && !state.is_busy;
                let pause = self.wake.wait_timeout_while(state, IDLE_INTERVAL, idle);
                state = pause.unwrap_or_else(PoisonError::into_inner).0;
            }
            state.is_busy = false;
            let blocks = std::mem::take(&mut state.blocks);
            // Without the lock, which threads need that map blocks.
            drop(state);
            let mut is_busy = false;
            let kept = blocks.into_iter().filter(|block| match block.upgrade().map(|block| block.sweep()) {
                Some(swept) => {
                    is_busy |= swept == SweptState::InUse;
                    swept != SweptState::Ended
                }
                None => false,
            });
            let kept: Vec<Weak<BlockSegment>> = kept.collect();
            state = self.lock();
            state.blocks.extend(kept);
            state.is_busy |= is_busy;
        }
    }
}
