//! Forked children that use the objects of their parent while its threads use them.

use std::io;
use std::os::unix::fs::FileExt;
use std::pin::Pin;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;

use nix::sys::wait::WaitStatus;

use super::byte_source::{ByteSource, PIECE, SLOT, pattern, target};
use super::disk_file::DiskFile;
use super::forked_child::in_forked_child;
use super::held_call::{HeldCall, HeldThread};
use super::memory_file::memory_file;
use crate::counters::{CounterPage, RingShape};
use crate::transfer::{ChunkPlan, HostSide, PlanSizes, TransferPlan, TransferState};
use crate::{
    Backend, BorrowedMemory, DeviceTarget, File, FileOptions, HostMemory, ReadAt, Ring, RingOptions,
    Transfer, TransferError, WriteAt,
};

/// Asserts that a child has ended, and that it has found what it expects.
macro_rules! assert_well {
    ($status:expr) => {
        assert!(matches!($status, WaitStatus::Exited(_, 0)), "{:?}", $status)
    };
}

fn host_target(bytes: usize) -> DeviceTarget {
    DeviceTarget::new(Arc::new(BorrowedMemory::from(HostMemory::new(bytes))))
}

/// Writes zeros by a ring of the calling process.
fn write_zeros(file: &File, bytes: usize, offset: u64) -> bool {
    let options = RingOptions::new().slots(2).slot_bytes(SLOT).piece_bytes(PIECE).workers(2);
    let ring = Ring::for_host(options).expect("threads");
    matches!(file.pwrite(&ring, host_target(bytes), offset).wait(), Ok(written) if written == bytes as u64)
}

#[test]
fn a_child_writes_a_part_of_a_block_while_its_parent_writes_blocks() {
    let mut content = pattern(2 * SLOT, 1);
    let disk = DiskFile::new("forked-edges", &content);
    let Some(file) = disk.open(Backend::Uring) else { return };
    if WriteAt::alignment(&file) == 1 {
        eprintln!("skipped: {}", file.backend());
        return;
    }
    let blocks = pattern(SLOT + 4096, 2);
    let start = blocks.as_ptr().align_offset(4096);
    content[..SLOT].copy_from_slice(&blocks[start..start + SLOT]);
    let of_thread = file.clone();
    let enter = HeldCall { number: libc::SYS_io_uring_enter, argument: None };
    let held = HeldThread::start(enter, move || of_thread.write_at(&blocks[start..start + SLOT], 0));
    let status = in_forked_child(|| write_zeros(&file, 100, SLOT as u64 + 4097));
    assert_eq!(held.resume().unwrap(), SLOT);
    assert_well!(status);
    content[SLOT + 4097..SLOT + 4197].fill(0);
    assert!(std::fs::read(&disk.0).unwrap() == content);
}

#[test]
fn a_child_writes_by_a_mapping_while_its_parent_maps_the_file() {
    let mut content = pattern(2 * SLOT, 3);
    let (memory, path) = memory_file(content.len());
    memory.write_all_at(&content, 0).unwrap();
    let file = FileOptions::new().backend(Backend::Mmap).write(true).open(path).unwrap();
    let of_thread = file.clone();
    let written = pattern(SLOT, 4);
    content[..SLOT].copy_from_slice(&written);
    // The flags of the mapping for writing.
    let map = HeldCall { number: libc::SYS_mmap, argument: Some((3, libc::MAP_SHARED as u32)) };
    let held = HeldThread::start(map, move || of_thread.write_at(&written, 0));
    let status = in_forked_child(|| write_zeros(&file, 100, SLOT as u64 + 1));
    assert_eq!(held.resume().unwrap(), SLOT);
    assert_well!(status);
    content[SLOT + 1..SLOT + 101].fill(0);
    let mut found = vec![0; content.len()];
    memory.read_exact_at(&mut found, 0).unwrap();
    assert!(found == content);
}

/// A waker whose drop does not end before the test lets it.
struct SlowWaker {
    dropping: Mutex<Sender<()>>,
    may_end: Mutex<Receiver<()>>,
}

impl Wake for SlowWaker {
    fn wake(self: Arc<Self>) {}
}

impl Drop for SlowWaker {
    fn drop(&mut self) {
        self.dropping.lock().unwrap().send(()).unwrap();
        self.may_end.lock().unwrap().recv().unwrap();
    }
}

#[test]
fn a_child_gets_errors_for_a_transfer_that_a_thread_of_its_parent_has_locked() {
    let shape = RingShape { slots: 1, slot_bytes: SLOT, piece_bytes: PIECE, workers: 1 };
    let counters = Arc::new(CounterPage::new("a device", shape).unwrap());
    let (_memory, to) = target(SLOT);
    let sizes = PlanSizes { alignment: 1, slot_bytes: SLOT, piece_bytes: PIECE };
    let plan = TransferPlan::Contiguous { plan: ChunkPlan::new((0, SLOT as u64), sizes), target: to };
    let source = HostSide::Source(Arc::new(ByteSource::new(pattern(SLOT, 5))));
    let state = Arc::new(TransferState::new(source, plan, counters));
    let mut transfer = Some(Transfer::new(state.clone()));
    assert!(!transfer.as_ref().unwrap().test());

    let (dropping, is_dropping) = channel();
    let (end, may_end) = channel();
    let of_thread = state.clone();
    let poller = thread::spawn(move || {
        let slow = SlowWaker { dropping: Mutex::new(dropping), may_end: Mutex::new(may_end) };
        assert!(of_thread.poll(&Waker::from(Arc::new(slow))).is_none());
        // Replaces the first waker, and drops it with the lock.
        assert!(of_thread.poll(Waker::noop()).is_none());
    });
    is_dropping.recv().unwrap();
    let status = in_forked_child(|| {
        // The parent keeps its own, whose drop would wait for the thread.
        let mut transfer = transfer.take().unwrap();
        let is_over = transfer.test();
        transfer.cancel();
        let polled = Pin::new(&mut transfer).poll(&mut Context::from_waker(Waker::noop()));
        let is_error = matches!(polled, Poll::Ready(Err(TransferError::Forked)));
        let well = is_over && is_error && matches!(transfer.wait(), Err(TransferError::Forked));
        drop(transfer);
        well
    });
    end.send(()).unwrap();
    poller.join().unwrap();
    assert_well!(status);
    assert!(!state.is_over(), "the child cannot cancel it");
}

/// A source that states the name that the standard library has for the reading thread.
struct NameSource(Mutex<Sender<Option<String>>>);

impl ReadAt for NameSource {
    fn name(&self) -> String {
        "names of threads".into()
    }

    fn read_at(&self, into: &mut [u8], _offset: u64) -> io::Result<usize> {
        self.0.lock().unwrap().send(thread::current().name().map(str::to_owned)).unwrap();
        Ok(into.len())
    }
}

/// The standard library holds a lock while one of its threads starts or ends. In a child that was
/// forked meanwhile, its threads never run.
#[test]
fn the_threads_of_a_ring_are_not_started_by_the_standard_library() {
    let (names, read) = channel();
    let options = RingOptions::new().slots(2).slot_bytes(SLOT).piece_bytes(PIECE).workers(2);
    let ring = Ring::for_host(options).expect("threads");
    ring.read(Arc::new(NameSource(Mutex::new(names))), 0, host_target(SLOT)).wait().unwrap();
    let names: Vec<_> = read.into_iter().collect();
    assert!(names.len() == SLOT / PIECE && names.iter().all(Option::is_none), "{names:?}");
}
