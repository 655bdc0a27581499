//! Counts the allocations of threads that a test names.

#![allow(unsafe_code, reason = "a global allocator, which passes all requests on")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

thread_local! {
    /// True in a thread whose allocations are counted.
    static IS_COUNTED: Cell<bool> = const { Cell::new(false) };
}

/// The number of allocations of all threads that are counted.
static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

/// The allocator of the system, with a count.
struct CountingAllocator;

impl CountingAllocator {
    fn count(&self) {
        // A thread that ends has no variables any more.
        if IS_COUNTED.try_with(Cell::get).unwrap_or(false) {
            ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        }
    }
}

// SAFETY: the allocator of the system does all of it.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.count();
        // SAFETY: the caller's promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        self.count();
        // SAFETY: the caller's promises.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        self.count();
        // SAFETY: the caller's promises.
        unsafe { System.realloc(block, layout, bytes) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// Counts the allocations of the calling thread from now on.
pub(super) fn count_this_thread() {
    IS_COUNTED.set(true);
}

/// Returns the number of allocations of all threads that are counted.
pub(super) fn allocations() -> u64 {
    ALLOCATIONS.load(Ordering::Relaxed)
}
