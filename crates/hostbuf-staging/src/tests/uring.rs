//! Reads and writes by io_uring.

use std::fs;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::fcntl::{FcntlArg, SealFlag, fcntl};

use super::byte_source::{PIECE, SLOT, pattern, ring, target};
use super::disk_file::DiskFile;
use super::memory_file::{MemoryFileMapping, memory_file};
use crate::{
    Backend, DeviceTarget, File, FileOptions, ReadAt, Ring, RingOptions, SimulatedDevice, TransferError,
};

/// Makes a ring of two slots of 4 MiB in pieces of 2 MiB, which are divided into parts.
fn large_ring(workers: usize, memory: MemoryFileMapping) -> Ring<SimulatedDevice> {
    let options = RingOptions::new().slots(2).slot_bytes(4 << 20).piece_bytes(2 << 20).workers(workers);
    Ring::new(SimulatedDevice::new(), options, memory).expect("the memory is large enough")
}

fn open(path: &str) -> Option<Arc<File>> {
    match FileOptions::new().backend(Backend::Uring).write(true).open(path) {
        Ok(file) => Some(Arc::new(file)),
        Err(error) if error.kind() == std::io::ErrorKind::Unsupported => {
            eprintln!("skipped: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn pieces_are_read_and_written_in_parts() {
    let content = pattern((19 << 20) + 321, 1);
    let disk = DiskFile::new("parts", &content);
    let Some(file) = disk.open(Backend::Uring).map(Arc::new) else { return };
    let (memory_of_ring, _) = memory_file(8 << 20);
    let ring = large_ring(3, MemoryFileMapping::new(&memory_of_ring, 8 << 20));
    for offset in [0, 1, 511, 4096, 3 << 20] {
        let (memory, to) = target(content.len() - offset);
        ring.read(file.clone(), offset as u64, to.clone()).wait().unwrap();
        assert!(memory.content() == content[offset..], "from {offset} on");
        memory.fill(&pattern(content.len() - offset, 2));
        ring.write(to.clone(), file.clone(), offset as u64).wait().unwrap();
        let written = fs::read(&disk.0).unwrap();
        assert!(
            written[offset..] == pattern(content.len() - offset, 2) && written[..offset] == content[..offset]
        );
        memory.fill(&content[offset..]);
        ring.write(to, file.clone(), offset as u64).wait().unwrap();
        file.sync().unwrap();
        assert!(fs::read(&disk.0).unwrap() == content);
    }
}

#[test]
fn a_file_grows_as_it_is_written() {
    let disk = DiskFile::new("grows", &[]);
    let Some(file) = disk.open(Backend::Uring).map(Arc::new) else { return };
    let content = pattern(5 * SLOT + 77, 3);
    let (memory, from) = target(content.len());
    memory.fill(&content);
    ring(SimulatedDevice::new(), 3, 3).write(from, file.clone(), 5).wait().unwrap();
    assert_eq!(file.bytes().unwrap(), content.len() as u64 + 5);
    assert!(fs::read(&disk.0).unwrap()[5..] == content);
}

#[test]
fn files_in_memory_go_through_the_page_cache() {
    let content = pattern(3 * SLOT + 999, 4);
    let (file, path) = memory_file(content.len());
    file.write_all_at(&content, 0).unwrap();
    let Some(file) = open(&path) else { return };
    let choice = file.backend();
    assert_eq!(choice.backend, Backend::Uring);
    assert_eq!(choice.why, "as requested, through the page cache: the file is in memory (tmpfs)");
    assert_eq!(ReadAt::alignment(&*file), 1);
    let ring = ring(SimulatedDevice::new(), 2, 2);
    for offset in [0, 1, 4097, content.len() - 1] {
        let (memory, to) = target(content.len() - offset);
        ring.read(file.clone(), offset as u64, to.clone()).wait().unwrap();
        assert!(memory.content() == content[offset..]);
        memory.fill(&pattern(content.len() - offset, 5));
        ring.write(to, file.clone(), offset as u64).wait().unwrap();
        assert!(fs::read(&path).unwrap()[offset..] == pattern(content.len() - offset, 5));
        file.as_std().write_all_at(&content, 0).unwrap();
    }
}

#[test]
fn a_read_ends_where_the_file_ends() {
    let content = pattern(2 * SLOT + 1000, 6);
    let disk = DiskFile::new("ends", &content);
    let Some(file) = disk.open(Backend::Uring).map(Arc::new) else { return };
    let ring = ring(SimulatedDevice::new(), 4, 2);
    let (_memory, to) = target(4 * SLOT);
    match ring.read(file.clone(), 0, to).wait() {
        Err(TransferError::UnexpectedEnd { offset, landed, .. }) => {
            // The piece after that of the end may be read first.
            assert!(offset >= content.len() as u64 && landed <= 2 * SLOT as u64, "{offset} {landed}");
        }
        other => panic!("{other:?}"),
    }
    let mut buffer = vec![0; 100];
    assert_eq!(file.read_at(&mut buffer, content.len() as u64 - 10).unwrap(), 10);
    assert_eq!(file.read_at(&mut buffer, content.len() as u64 + 10).unwrap(), 0);
    assert_eq!(file.read_at(&mut [], 0).unwrap(), 0);
}

#[test]
fn a_file_that_shrinks_ends_a_transfer_early() {
    let content = pattern(40 * SLOT, 7);
    let disk = DiskFile::new("shrinks", &content);
    let Some(file) = disk.open(Backend::Uring).map(Arc::new) else { return };
    let stops = Arc::new(AtomicBool::new(false));
    let shrinking = std::thread::spawn({
        let (stops, file, content) = (stops.clone(), file.clone(), content.clone());
        move || {
            let mut short = 39 * SLOT + 100;
            while !stops.load(Ordering::Relaxed) {
                file.as_std().set_len(short as u64).expect("it shrinks");
                file.as_std().write_all_at(&content[short..], short as u64).expect("it grows");
                short = if short < SLOT { 39 * SLOT } else { short - 3001 };
            }
        }
    });
    let ring = ring(SimulatedDevice::new(), 4, 3);
    for _ in 0..50 {
        let (memory, to) = target(content.len());
        match ring.read(file.clone(), 0, to).wait() {
            // A hole that is being written again has zeros.
            Ok(landed) => assert_eq!(landed, content.len() as u64),
            Err(TransferError::UnexpectedEnd { offset, landed, .. }) => {
                assert!(landed <= offset && offset < content.len() as u64, "{landed} {offset}");
            }
            Err(error) => panic!("{error}"),
        }
        drop(memory);
    }
    stops.store(true, Ordering::Relaxed);
    shrinking.join().unwrap();
    file.as_std().write_all_at(&content, 0).unwrap();
    let (memory, to) = target(content.len());
    assert_eq!(ring.read(file, 0, to).wait().unwrap(), content.len() as u64);
    assert!(memory.content() == content);
}

#[test]
fn an_error_of_the_file_is_that_of_the_transfer() {
    let disk = DiskFile::new("read-only", &pattern(SLOT, 8));
    if disk.open(Backend::Uring).is_none() {
        return;
    }
    let file = FileOptions::new().backend(Backend::Uring).open(&disk.0).unwrap();
    let (_memory, from) = target(SLOT);
    let error = ring(SimulatedDevice::new(), 2, 1).write(from, Arc::new(file), 0).wait().unwrap_err();
    assert!(error.to_string().ends_with("Bad file descriptor (os error 9); 0 bytes have landed"), "{error}");
}

#[test]
fn many_threads_read_at_once() {
    let content = Arc::new(pattern(30 * SLOT + 5, 9));
    let disk = DiskFile::new("threads", &content);
    let Some(file) = disk.open(Backend::Uring).map(Arc::new) else { return };
    let readers = (0..24).map(|number| {
        let (file, content) = (file.clone(), content.clone());
        std::thread::spawn(move || {
            let mut buffer = vec![0; 3 * PIECE];
            for start in (0..content.len()).step_by(PIECE * 5 + number) {
                let bytes = file.read_at(&mut buffer, start as u64).expect("it is read");
                assert!(bytes > 0 && buffer[..bytes] == content[start..start + bytes]);
            }
        })
    });
    let readers: Vec<_> = readers.collect();
    let rings: Vec<_> = (0..3).map(|_| ring(SimulatedDevice::new(), 4, 8)).collect();
    let transfers: Vec<_> = (0..12)
        .map(|number| {
            let (memory, to) = target(content.len() - number);
            (number, memory, rings[number % 3].read(file.clone(), number as u64, to))
        })
        .collect();
    for (number, memory, transfer) in transfers {
        transfer.wait().unwrap();
        assert!(memory.content() == content[number..]);
    }
    for reader in readers {
        reader.join().unwrap();
    }
}

#[test]
fn rings_end_early_and_give_their_memory_back() {
    let content = pattern(64 * SLOT, 10);
    let disk = DiskFile::new("early", &content);
    let Some(file) = disk.open(Backend::Uring).map(Arc::new) else { return };
    for round in 0..40 {
        let (memory_of_ring, _) = memory_file(4 * SLOT);
        let options = RingOptions::new().slots(4).slot_bytes(SLOT).piece_bytes(SLOT).workers(3);
        let memory = MemoryFileMapping::new(&memory_of_ring, 4 * SLOT);
        let ring = Ring::new(SimulatedDevice::new(), options, memory).unwrap();
        let (_memory, to) = target(content.len());
        let transfer = ring.read(file.clone(), 0, to.clone());
        let dropped = ring.write(DeviceTarget::clone(&to), file.clone(), 0);
        // The content of the file does not matter, the end of all operations does.
        drop(dropped);
        while ring.counters().copies < round % 7 {
            std::thread::yield_now();
        }
        transfer.cancel();
        drop(ring);
        assert!(transfer.test());
        // The kernel refuses the seal while a page is pinned or mapped for writing.
        fcntl(&memory_of_ring, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_WRITE)).expect("no page is in use");
    }
}
