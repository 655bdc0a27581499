//! The memory of a ring, and the threads that access it.

use std::ptr::NonNull;
use std::sync::Condvar;

use hostbuf_os::fork_guard::ForkGuard;
use hostbuf_os::poison::IgnorePoison;
use hostbuf_register::{RingMemory, Span};

use crate::sync::Mutex;

/// The memory of a ring, and the number of threads that access it.
pub(super) struct RingLife {
    fork_guard: ForkGuard,
    memory: Mutex<Option<Box<dyn RingMemory>>>,
    /// The number of threads that have not ended.
    threads: Mutex<usize>,
    ended: Condvar,
}

impl RingLife {
    pub(super) fn new(memory: Box<dyn RingMemory>) -> RingLife {
        RingLife {
            fork_guard: ForkGuard::current(),
            memory: Mutex::new(Some(memory)),
            threads: Mutex::new(0),
            ended: Condvar::new(),
        }
    }

    /// Returns whether this process uses the memory, and a part of it is in `span`.
    pub(super) fn uses(&self, span: Span) -> bool {
        if !self.fork_guard.is_current() {
            return false;
        }
        let memory = self.memory.lock().ignore_poison();
        memory.as_ref().is_some_and(|memory| {
            Span::new(memory.address().as_ptr() as usize, memory.bytes()).is_ok_and(|own| own.overlaps(span))
        })
    }

    /// Returns the memory, which stays as long as a thread is counted.
    ///
    /// # Panics
    /// If it was given back.
    pub(super) fn memory(&self) -> NonNull<[u8]> {
        let memory = self.memory.lock().ignore_poison();
        let memory = memory.as_ref().expect("a ring with threads has its memory");
        NonNull::slice_from_raw_parts(memory.address(), memory.bytes())
    }

    /// Counts a thread that begins.
    pub(super) fn begin_thread(&self) {
        *self.threads.lock().ignore_poison() += 1;
    }

    /// Counts the calling thread too, unless all threads have ended. Returns whether it is counted.
    pub(super) fn join(&self) -> bool {
        let mut threads = self.threads.lock().ignore_poison();
        let has_threads = *threads > 0;
        *threads += usize::from(has_threads);
        has_threads
    }

    /// States that a thread has accessed the memory for the last time.
    pub(super) fn end_thread(&self) {
        *self.threads.lock().ignore_poison() -= 1;
        self.ended.notify_all();
    }

    /// Waits until no thread is counted any more.
    pub(super) fn wait_for_threads(&self) {
        let mut threads = self.threads.lock().ignore_poison();
        while *threads > 0 {
            threads = self.ended.wait(threads).ignore_poison();
        }
    }

    /// Gives the memory back. Neither threads nor the device access it any more.
    pub(super) fn release_memory(&self) {
        let memory = self.memory.lock().ignore_poison().take();
        // Ending a registration calls a device: not under the lock.
        drop(memory);
    }

    /// Keeps the memory for ever.
    pub(super) fn keep_memory(&self) {
        std::mem::forget(self.memory.lock().ignore_poison().take());
    }
}
