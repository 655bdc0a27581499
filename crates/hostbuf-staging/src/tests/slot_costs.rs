//! A slot costs no allocation, and no system call but the reads, the writes and those of the
//! device.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier};

use super::allocation_count::{allocations, count_this_thread};
use super::byte_source::{PIECE, SLOT, pattern, target};
use super::disk_file::DiskFile;
use super::polled_device::PolledDevice;
use super::system_calls::CallCounter;
use crate::{Backend, HostMemory, ReadAt, Ring, RingOptions, WriteAt};

/// The number of pieces of a slot.
const PIECES: u64 = (SLOT / PIECE) as u64;

/// A source or sink that calls a function before each read or write, with the number of those
/// before.
struct Observed<T, F> {
    endpoint: T,
    operations: AtomicU64,
    before: F,
}

impl<T, F: Fn(u64)> Observed<T, F> {
    fn new(endpoint: T, before: F) -> Observed<T, F> {
        Observed { endpoint, operations: AtomicU64::new(0), before }
    }

    fn begin(&self) -> &T {
        (self.before)(self.operations.fetch_add(1, Ordering::Relaxed));
        &self.endpoint
    }
}

impl<T: ReadAt, F: Fn(u64) + Send + Sync + 'static> ReadAt for Observed<T, F> {
    fn name(&self) -> String {
        self.endpoint.name()
    }

    fn read_at(&self, into: &mut [u8], offset: u64) -> io::Result<usize> {
        self.begin().read_at(into, offset)
    }
}

impl<T: WriteAt, F: Fn(u64) + Send + Sync + 'static> WriteAt for Observed<T, F> {
    fn name(&self) -> String {
        self.endpoint.name()
    }

    fn write_at(&self, from: &[u8], offset: u64) -> io::Result<usize> {
        self.begin().write_at(from, offset)
    }
}

/// Bytes that are all zeros.
struct ZeroBytes;

impl ReadAt for ZeroBytes {
    fn name(&self) -> String {
        "zeros".into()
    }

    fn read_at(&self, into: &mut [u8], _: u64) -> io::Result<usize> {
        into.fill(0);
        Ok(into.len())
    }
}

impl WriteAt for ZeroBytes {
    fn name(&self) -> String {
        "zeros".into()
    }

    fn write_at(&self, from: &[u8], _: u64) -> io::Result<usize> {
        Ok(from.len())
    }
}

fn polled_ring(workers: usize) -> Ring<PolledDevice> {
    let options = RingOptions::new().slots(6).slot_bytes(SLOT).piece_bytes(PIECE).workers(workers);
    Ring::new(PolledDevice::default(), options, HostMemory::new(6 * SLOT)).expect("the options are valid")
}

/// Moves `slots` slots in each direction, and returns the number of allocations of this thread and
/// of those of the ring.
fn allocations_of(ring: &Ring<PolledDevice>, slots: usize) -> u64 {
    let (memory, all) = target(slots * SLOT);
    let zeros = Arc::new(Observed::new(ZeroBytes, |_| count_this_thread()));
    let before = allocations();
    ring.read(zeros.clone(), 0, all.clone()).wait().unwrap();
    ring.write(all, zeros, 0).wait().unwrap();
    let count = allocations() - before;
    drop(memory);
    count
}

#[test]
fn a_slot_needs_no_allocation() {
    count_this_thread();
    for workers in [1, 3] {
        let ring = polled_ring(workers);
        // The first transfers start what a thread keeps.
        let warm: Vec<u64> = (0..10).map(|_| allocations_of(&ring, 8)).collect();
        let (few, many) = (allocations_of(&ring, 8), allocations_of(&ring, 800));
        println!("{workers} workers: {warm:?}, {few}, {many}");
        assert!(few > 0, "the allocations of a transfer are counted");
        assert!(many <= few + 2, "{few} allocations for 8 slots, and {many} for 800");
        assert!(ring.device().calls.load(Ordering::Relaxed) >= 2 * 800);
    }
}

/// Makes a ring whose threads `counter` counts, and calls `run` with it.
fn with_counted_ring(
    workers: usize,
    run: impl FnOnce(&Ring<PolledDevice>, &Arc<CallCounter>),
) -> Arc<CallCounter> {
    let counter = Arc::new(CallCounter::new());
    std::thread::scope(|scope| {
        scope.spawn(|| counter.serve());
        let make = || {
            counter.report_this_thread();
            polled_ring(workers)
        };
        let ring = scope.spawn(make).join().expect("a ring");
        // Each thread of the ring reads a piece: all of them have started.
        let barrier = Barrier::new(workers);
        let (_memory, to) = target(workers * PIECE);
        let source = Observed::new(ZeroBytes, move |_| {
            barrier.wait();
        });
        ring.read(Arc::new(source), 0, to).wait().unwrap();
        run(&ring, &counter);
    });
    counter
}

/// The slots of a transfer whose system calls are counted. The first and the last ones are not:
/// there the threads begin and end to sleep.
const SLOTS: u64 = 200;
const FIRST: u64 = 10 * PIECES;
const LAST: u64 = 190 * PIECES;

/// Counts the calls from the first to the last piece.
fn counts_pieces(counter: &Arc<CallCounter>) -> impl Fn(u64) + Send + Sync + use<> {
    let counter = counter.clone();
    move |number| match number {
        FIRST => counter.count(true),
        LAST => counter.count(false),
        _ => {}
    }
}

#[test]
fn a_slot_needs_no_system_call_but_reads_and_writes() {
    let disk = DiskFile::new("slot-costs", &pattern(SLOTS as usize * SLOT, 1));
    let counter = with_counted_ring(1, |ring, counter| {
        let (memory, to) = target(SLOTS as usize * SLOT);
        let file =
            Observed::new(disk.open(Backend::Posix).expect("all systems have it"), counts_pieces(counter));
        ring.read(Arc::new(file), 0, to).wait().unwrap();
        assert!(memory.content() == pattern(SLOTS as usize * SLOT, 1));
    });
    assert_eq!(counter.calls(), [(libc::SYS_pread64, LAST - FIRST)]);
    let counter = with_counted_ring(1, |ring, counter| {
        let (_memory, from) = target(SLOTS as usize * SLOT);
        let sink = Observed::new(ZeroBytes, counts_pieces(counter));
        ring.write(from, Arc::new(sink), 0).wait().unwrap();
    });
    assert_eq!(counter.calls(), []);
}

#[test]
fn threads_that_share_slots_only_sleep_and_wake_each_other() {
    let counter = with_counted_ring(3, |ring, counter| {
        let (_memory, to) = target(SLOTS as usize * SLOT);
        let source = Observed::new(ZeroBytes, counts_pieces(counter));
        ring.read(Arc::new(source), 0, to).wait().unwrap();
    });
    let calls = counter.calls();
    let is_sleep = |number| [libc::SYS_futex, libc::SYS_sched_yield].contains(&number);
    assert!(calls.iter().all(|&(number, _)| is_sleep(number)), "{calls:?}");
}
