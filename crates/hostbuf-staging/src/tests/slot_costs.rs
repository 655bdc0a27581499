//! A slot costs no allocation, no lock, and no system call but the reads, the writes and those of
//! the device.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier};

use super::allocation_count::{allocations, count_this_thread};
use super::byte_source::{PIECE, SLOT, pattern, target};
use super::counted_mutex::{self, locks};
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

    fn alignment(&self) -> u64 {
        self.endpoint.alignment()
    }

    fn read_at(&self, into: &mut [u8], offset: u64) -> io::Result<usize> {
        self.begin().read_at(into, offset)
    }
}

impl<T: WriteAt, F: Fn(u64) + Send + Sync + 'static> WriteAt for Observed<T, F> {
    fn name(&self) -> String {
        self.endpoint.name()
    }

    fn alignment(&self) -> u64 {
        self.endpoint.alignment()
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

/// Moves `slots` slots in each direction between `endpoint` and a device. `count` is called in each
/// thread of the ring.
fn move_slots(ring: &Ring<PolledDevice>, endpoint: impl ReadAt + WriteAt, slots: usize, count: fn()) {
    let (_memory, all) = target(slots * SLOT);
    let endpoint = Arc::new(Observed::new(endpoint, move |_| count()));
    ring.read(endpoint.clone(), 0, all.clone()).wait().unwrap();
    ring.write(all, endpoint, 0).wait().unwrap();
}

/// Returns the number of allocations of this thread and of those of the ring while `slots` slots
/// move in each direction.
fn allocations_of(ring: &Ring<PolledDevice>, endpoint: impl ReadAt + WriteAt, slots: usize) -> u64 {
    let before = allocations();
    move_slots(ring, endpoint, slots, count_this_thread);
    allocations() - before
}

/// Returns the number of locks that this thread and those of the ring take while `slots` slots move
/// in each direction, by the source files of the ring.
fn locks_of(ring: &Ring<PolledDevice>, slots: usize) -> BTreeMap<&'static str, u64> {
    let before = locks();
    move_slots(ring, ZeroBytes, slots, counted_mutex::count_this_thread);
    locks().into_iter().map(|(file, count)| (file, count - before.get(file).unwrap_or(&0))).collect()
}

#[test]
fn a_slot_needs_no_allocation() {
    count_this_thread();
    for workers in [1, 3] {
        let ring = polled_ring(workers);
        // The first transfers start what a thread keeps.
        let warm: Vec<u64> = (0..10).map(|_| allocations_of(&ring, ZeroBytes, 8)).collect();
        let (few, many) = (allocations_of(&ring, ZeroBytes, 8), allocations_of(&ring, ZeroBytes, 800));
        println!("{workers} workers: {warm:?}, {few}, {many}");
        assert!(few > 0, "the allocations of a transfer are counted");
        assert!(many <= few + 2, "{few} allocations for 8 slots, and {many} for 800");
        assert!(ring.device().calls.load(Ordering::Relaxed) >= 2 * 800);
    }
}

#[test]
fn a_slot_needs_no_lock() {
    counted_mutex::count_this_thread();
    for workers in [1, 3] {
        let ring = polled_ring(workers);
        let (few, many) = (locks_of(&ring, 8), locks_of(&ring, 800));
        println!("{workers} workers: {few:?}, {many:?}");
        // Threads that share slots sleep and wake each other, for which they take a lock.
        let is_counted = |file: &str| workers == 1 || !file.ends_with("work_signal.rs");
        let all = |locks: BTreeMap<&str, u64>| -> u64 {
            locks.iter().filter(|(file, _)| is_counted(file)).map(|(_, count)| count).sum()
        };
        let (few, many) = (all(few), all(many));
        assert!(few > 0, "the locks of a transfer are counted");
        assert!(many < few + 40, "{few} locks for 8 slots, and {many} for 800");
    }
}

#[test]
fn a_slot_needs_no_allocation_of_io_uring() {
    const MANY: usize = 100;
    let disk = DiskFile::new("uring-allocations", &pattern(MANY * SLOT, 2));
    let Some(file) = disk.open(Backend::Uring) else { return };
    count_this_thread();
    let ring = polled_ring(2);
    // Each thread makes its io_uring.
    let warm: Vec<u64> = (0..10).map(|_| allocations_of(&ring, file.clone(), 8)).collect();
    let (few, many) = (allocations_of(&ring, file.clone(), 8), allocations_of(&ring, file, MANY));
    println!("{warm:?}, {few}, {many}");
    assert!(many <= few + 2, "{few} allocations for 8 slots, and {many} for {MANY}");
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
fn a_piece_needs_one_system_call_of_io_uring() {
    let content = pattern(SLOTS as usize * SLOT, 3);
    let disk = DiskFile::new("uring-calls", &content);
    let Some(file) = disk.open(Backend::Uring) else { return };
    let counter = with_counted_ring(1, |ring, counter| {
        let (memory, to) = target(content.len());
        ring.read(Arc::new(Observed::new(file.clone(), counts_pieces(counter))), 0, to).wait().unwrap();
        assert!(memory.content() == content);
    });
    assert_eq!(counter.calls(), [(libc::SYS_io_uring_enter, LAST - FIRST)]);
    let counter = with_counted_ring(1, |ring, counter| {
        let (memory, from) = target(content.len());
        memory.fill(&content);
        ring.write(from, Arc::new(Observed::new(file, counts_pieces(counter))), 0).wait().unwrap();
    });
    assert_eq!(counter.calls(), [(libc::SYS_io_uring_enter, LAST - FIRST)]);
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
