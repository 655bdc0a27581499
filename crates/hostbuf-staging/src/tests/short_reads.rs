//! Short reads, which the thread that starts them does.

use std::fs;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, ThreadId};
use std::time::Duration;

use super::byte_source::{PIECE, SLOT, pattern, ring, target};
use super::disk_file::DiskFile;
use crate::{Backend, Fault, FileOptions, ReadAt, Ring, SimulatedDevice, TransferError, drop_cached_pages};

/// A source in memory that notes which threads read it.
#[derive(Default)]
pub(super) struct CountingSource {
    content: Vec<u8>,
    readers: Mutex<Vec<ThreadId>>,
    /// The number of bytes that a read gets which does not wait.
    ready: usize,
    waited: AtomicU64,
}

impl CountingSource {
    /// Makes a source of which a read that does not wait gets up to `ready` bytes.
    pub(super) fn new(content: Vec<u8>, ready: usize) -> CountingSource {
        CountingSource { content, ready, ..CountingSource::default() }
    }
}

impl ReadAt for CountingSource {
    fn name(&self) -> String {
        "counted".into()
    }

    fn read_at(&self, into: &mut [u8], offset: u64) -> io::Result<usize> {
        self.waited.fetch_add(1, Ordering::SeqCst);
        into.copy_from_slice(&self.content[offset as usize..][..into.len()]);
        self.readers.lock().unwrap().push(thread::current().id());
        Ok(into.len())
    }

    fn read_without_waiting(&self, into: &mut [u8], offset: u64) -> io::Result<usize> {
        let bytes = into.len().min(self.ready);
        into[..bytes].copy_from_slice(&self.content[offset as usize..][..bytes]);
        self.readers.lock().unwrap().push(thread::current().id());
        Ok(bytes)
    }
}

/// Reads `bytes` bytes at 77, and returns whether this thread has read them.
fn reads_here(ring: &Ring<SimulatedDevice>, ready: usize, bytes: usize) -> bool {
    let content = pattern(3 * SLOT, 4);
    let source = Arc::new(CountingSource::new(content.clone(), ready));
    let (memory, to) = target(bytes);
    ring.read(source.clone(), 77, to).wait().unwrap();
    assert!(memory.content() == content[77..77 + bytes]);
    let waited = source.waited.load(Ordering::SeqCst);
    let readers = source.readers.lock().unwrap();
    assert!(waited == 0 || readers.last() != Some(&thread::current().id()));
    waited == 0
}

/// Makes a ring that has nothing to do.
fn idle_ring() -> Ring<SimulatedDevice> {
    ring(SimulatedDevice::new(), 3, 2)
}

#[test]
fn a_short_read_needs_no_other_thread() {
    for bytes in [1, 100, 4096, PIECE] {
        assert!(reads_here(&idle_ring(), PIECE, bytes), "{bytes}");
    }
    // One that would have to wait, one that gets too little, and two of several pieces.
    for (ready, bytes) in [(0, 4096), (4095, 4096), (SLOT, PIECE + 1), (SLOT, 2 * SLOT)] {
        assert!(!reads_here(&idle_ring(), ready, bytes), "{ready} {bytes}");
    }
    // The slot of a read may be free a moment after its end; the bytes are right in both ways.
    let ring = idle_ring();
    for _ in 0..1000 {
        let _ = reads_here(&ring, PIECE, 4096);
    }
}

#[test]
fn the_threads_of_the_ring_end_a_slow_copy() {
    let device = SimulatedDevice::new();
    device.fault(1, Fault::Delay(Duration::from_millis(20)));
    assert!(reads_here(&ring(device, 3, 2), PIECE, 4096));
}

#[test]
fn an_error_of_the_device_is_that_of_a_short_read() {
    let device = SimulatedDevice::new();
    device.fault(2, Fault::Fail);
    device.fault(3, Fault::Refuse);
    let ring = ring(device, 3, 2);
    assert!(reads_here(&ring, PIECE, 4096));
    for _ in 0..2 {
        let source = CountingSource::new(pattern(SLOT, 4), PIECE);
        let (_memory, to) = target(100);
        let failed = ring.read(Arc::new(source), 0, to).wait();
        assert!(matches!(failed, Err(TransferError::Device { landed: 0, .. })), "{failed:?}");
    }
    // All slots have come back.
    for _ in 0..10 {
        let _ = reads_here(&ring, PIECE, 100);
    }
}

#[test]
fn many_threads_read_at_once_beside_long_transfers() {
    let ring = idle_ring();
    let (long_memory, long) = target(20 * SLOT);
    let content = pattern(20 * SLOT, 8);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..500 {
                    let _ = reads_here(&ring, PIECE, 333);
                }
            });
        }
        for _ in 0..20 {
            let source = CountingSource::new(content.clone(), 0);
            ring.read(Arc::new(source), 0, long.clone()).wait().unwrap();
            assert!(long_memory.content() == content);
        }
    });
}

#[test]
fn a_file_that_is_not_in_the_page_cache_is_left_to_the_ring() {
    let content = pattern(4 * SLOT, 6);
    let disk = DiskFile::new("short", &content);
    let file = FileOptions::new().backend(Backend::Posix).open(&disk.0).unwrap();
    let mut bytes = [0; 100];
    assert_eq!(file.read_without_waiting(&mut bytes, 5).unwrap(), 100);
    assert!(bytes == content[5..105]);
    fs::File::open(&disk.0).unwrap().sync_all().unwrap();
    // The read itself makes the kernel read ahead, so a fast disk may answer before it looks.
    let would_block = (0..100).any(|_| {
        drop_cached_pages(file.as_std()).unwrap();
        bytes.fill(0);
        match file.read_without_waiting(&mut bytes, 5) {
            Ok(read) => {
                assert!(bytes[..read] == content[5..5 + read]);
                false
            }
            Err(error) => {
                assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
                true
            }
        }
    });
    assert!(would_block, "each read got bytes that were dropped from the page cache");
    drop_cached_pages(file.as_std()).unwrap();
    let (memory, to) = target(100);
    file.pread(&idle_ring(), to, 5).wait().unwrap();
    assert!(memory.content() == content[5..105]);
}

/// A source that states more bytes than there is room for.
struct LyingSource;

impl ReadAt for LyingSource {
    fn name(&self) -> String {
        "lying".into()
    }

    fn read_at(&self, into: &mut [u8], _offset: u64) -> io::Result<usize> {
        Ok(into.len() + 1)
    }

    fn read_without_waiting(&self, into: &mut [u8], _offset: u64) -> io::Result<usize> {
        Ok(into.len() + 1)
    }
}

#[test]
fn a_source_that_states_too_many_bytes_is_an_error() {
    let (_memory, to) = target(100);
    let failed = idle_ring().read(Arc::new(LyingSource), 0, to).wait();
    assert!(matches!(failed, Err(TransferError::Io { landed: 0, .. })), "{failed:?}");
}
