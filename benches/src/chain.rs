//! The order of the requests: one cycle through all registered ranges, in which each address
//! depends on the previous answer. So hits do not overlap, and the latency of one hit is measured.

#![allow(
    unsafe_code,
    reason = "the chain is memory that is read by raw pointers, and the clock is a foreign function"
)]

use std::hint::black_box;

use hostbuf::register::Span;

pub(crate) const PAGE: usize = 4096;
/// The number of pages of an entry, and the average distance between entries, which are at random
/// distances and never adjacent.
pub(crate) const PAGES: usize = 4;
pub(crate) const STRIDE: usize = 8;
pub(crate) const SEED: u64 = 88_172_645_463_325_252;
/// The number of bytes of one request.
pub(crate) const ASKED: usize = 64;

/// An address and its successor, in one cache line: a step adds one memory access to the measured
/// work.
#[derive(Clone, Copy, Default)]
#[repr(C, align(16))]
struct Cell {
    address: usize,
    next: usize,
}

pub(crate) struct Chain {
    starts: Vec<usize>,
    cells: Vec<Cell>,
    /// The index of the first cell, at a boundary of huge pages.
    first: usize,
}

impl Chain {
    pub(crate) fn new(base: usize, entries: usize) -> Chain {
        const HUGE: usize = 2 << 20;
        let mut state = SEED;
        let mut random = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        let mut order: Vec<usize> = (0..entries).collect();
        for i in (1..entries).rev() {
            order.swap(i, (random() % (i as u64 + 1)) as usize);
        }
        let size = size_of::<Cell>();
        let mut cells = Vec::with_capacity(entries + 2 * HUGE / size);
        let address = cells.as_ptr() as usize;
        let first = (address.next_multiple_of(HUGE) - address) / size;
        // SAFETY: an advice about memory of this vector. The kernel refuses it for small vectors,
        // which do not need it.
        unsafe {
            let at = address.next_multiple_of(HUGE) as *mut libc::c_void;
            libc::madvise(at, (entries * size).next_multiple_of(HUGE), libc::MADV_HUGEPAGE);
        }
        cells.resize(first + entries, Cell::default());
        let mut starts = Vec::with_capacity(entries);
        for i in 0..entries {
            let apart = random() as usize % (STRIDE - PAGES);
            starts.push(base + (i * STRIDE + apart) * PAGE);
            // Every second range is requested from its middle.
            let inside = if i % 2 == 1 { PAGES / 2 * PAGE + 512 } else { 0 };
            cells[first + i].address = starts[i] + inside;
            cells[first + order[i]].next = order[(i + 1) % entries];
        }
        Chain { starts, cells, first }
    }

    /// Returns the ranges to register.
    pub(crate) fn entries(&self) -> impl Iterator<Item = Span> {
        self.starts.iter().map(|&start| Span::new(start, PAGES * PAGE).expect("a range of memory"))
    }

    /// Returns the ranges to request.
    pub(crate) fn asked(&self) -> impl Iterator<Item = Span> {
        self.cells[self.first..].iter().map(|cell| Span::new(cell.address, ASKED).expect("a range of memory"))
    }

    /// Walks `steps` steps. The result of `ask` determines the next step, although the walk is
    /// always the same.
    #[inline(always)]
    pub(crate) fn walk(&self, steps: usize, mut ask: impl FnMut(*const u8) -> u64) {
        let cells = &self.cells[self.first..];
        let mut at = 0;
        for _ in 0..steps {
            let cell = cells[at];
            let nothing = ask(cell.address as *const u8) & (1 << 63);
            at = cell.next + nothing as usize;
        }
        black_box(at);
    }

    /// Returns the seconds of one step by this thread's CPU time: a step never sleeps, and time of
    /// other programs on the core is not included. It walks the cycle once before, which warms up
    /// the caches.
    #[inline(always)]
    #[allow(clippy::redundant_closure, reason = "a reference to it would be called, and not put in line")]
    pub(crate) fn time(&self, steps: usize, mut ask: impl FnMut(*const u8) -> u64) -> f64 {
        let mut seconds = 0.0;
        for steps in [self.starts.len(), steps] {
            let begun = own_time();
            self.walk(steps, |address| ask(address));
            seconds = (own_time() - begun) / steps as f64;
        }
        seconds
    }
}

/// Returns the CPU time of this thread in seconds.
pub(crate) fn own_time() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: every thread has this clock, which is written into a local.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}
