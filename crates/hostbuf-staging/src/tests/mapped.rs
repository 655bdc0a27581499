//! Reads and writes through mappings of a file on tmpfs.

use std::fs;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use super::byte_source::{SLOT, pattern, ring, target};
use super::disk_file::DiskFile;
use super::memory_file::memory_file;
use crate::{Backend, File, FileOptions, ReadAt, SimulatedDevice, TransferError, WriteAt};

fn open(path: &str) -> File {
    FileOptions::new().backend(Backend::Mmap).write(true).open(path).expect("it is on tmpfs")
}

#[test]
fn a_mapped_file_is_read_and_written() {
    let content = pattern(6 * SLOT + 123, 1);
    let (file, path) = memory_file(content.len());
    file.write_all_at(&content, 0).unwrap();
    let mapped = Arc::new(open(&path));
    assert_eq!(mapped.backend().to_string(), "mmap: as requested");
    let ring = ring(SimulatedDevice::new(), 3, 2);
    for offset in [0, 1, 4096, SLOT + 5, content.len() - 1] {
        let (memory, to) = target(content.len() - offset);
        ring.read(mapped.clone(), offset as u64, to.clone()).wait().unwrap();
        assert!(memory.content() == content[offset..]);
        memory.fill(&pattern(content.len() - offset, 2));
        ring.write(to.clone(), mapped.clone(), offset as u64).wait().unwrap();
        assert!(fs::read(&path).unwrap()[offset..] == pattern(content.len() - offset, 2));
        ring.read(mapped.clone(), offset as u64, to).wait().unwrap();
        assert!(memory.content() == pattern(content.len() - offset, 2), "the mapping shows what was written");
        file.write_all_at(&content, 0).unwrap();
    }
}

#[test]
fn a_mapped_file_that_was_truncated_ends_a_transfer() {
    let content = pattern(4 * SLOT, 3);
    let (file, path) = memory_file(content.len());
    file.write_all_at(&content, 0).unwrap();
    let mapped = Arc::new(open(&path));
    file.set_len(2 * SLOT as u64 + 10).unwrap();
    let ring = ring(SimulatedDevice::new(), 2, 1);
    let (_memory, to) = target(content.len());
    match ring.read(mapped.clone(), 0, to).wait() {
        Err(TransferError::UnexpectedEnd { offset, landed, .. }) => {
            assert_eq!((offset, landed), (2 * SLOT as u64 + 10, 2 * SLOT as u64));
        }
        other => panic!("{other:?}"),
    }
    let mut buffer = [1; 20];
    assert_eq!(mapped.read_at(&mut buffer, 2 * SLOT as u64).unwrap(), 10);
    file.set_len(0).unwrap();
    assert_eq!(mapped.read_at(&mut buffer, 0).unwrap(), 0);
}

#[test]
fn a_mapped_file_that_has_grown_is_read_to_its_end() {
    let content = pattern(2 * SLOT, 4);
    for before in [0, 100, SLOT] {
        let (file, path) = memory_file(before);
        let mapped = Arc::new(open(&path));
        file.write_all_at(&content, 0).unwrap();
        let (memory, to) = target(content.len());
        ring(SimulatedDevice::new(), 2, 2).read(mapped, 0, to).wait().unwrap();
        assert!(memory.content() == content, "{before} bytes were mapped");
    }
}

#[test]
fn holes_are_read_without_being_allocated() {
    let (file, path) = memory_file(4 * SLOT);
    file.write_all_at(&pattern(SLOT, 5), SLOT as u64).unwrap();
    let mapped = Arc::new(open(&path));
    let blocks = || std::os::unix::fs::MetadataExt::blocks(&file.metadata().unwrap());
    let before = blocks();
    let (memory, to) = target(4 * SLOT);
    ring(SimulatedDevice::new(), 2, 2).read(mapped, 0, to).wait().unwrap();
    let mut expected = vec![0; 4 * SLOT];
    expected[SLOT..2 * SLOT].copy_from_slice(&pattern(SLOT, 5));
    assert!(memory.content() == expected);
    assert_eq!(blocks(), before);
}

#[test]
fn a_new_file_grows_by_writes_through_a_mapping() {
    let content = pattern(6 * SLOT + 123, 7);
    let (file, path) = memory_file(0);
    let mapped = Arc::new(open(&path));
    let (memory, from) = target(content.len());
    memory.fill(&content);
    ring(SimulatedDevice::new(), 3, 4).write(from, mapped.clone(), 5).wait().unwrap();
    let written = fs::read(&path).unwrap();
    assert!(written[..5] == [0; 5] && written[5..] == content);
    assert!(is_mapped_for_writing(&file), "the writes did not go to pwrite");
    drop(mapped);
    assert!(!is_mapped_for_writing(&file));
}

/// Returns whether this process has a writable mapping of a file.
fn is_mapped_for_writing(file: &fs::File) -> bool {
    let inode = std::os::unix::fs::MetadataExt::ino(&file.metadata().unwrap()).to_string();
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().map(|line| line.split_whitespace().collect()).any(|fields: Vec<&str>| {
        fields.get(1).is_some_and(|access| access.starts_with("rw")) && fields.get(4) == Some(&&*inode)
    })
}

#[test]
fn files_on_tmpfs_are_written_through_a_mapping_by_default() {
    let content = pattern(6 * SLOT + 123, 9);
    let (file, path) = memory_file(100);
    let opened = Arc::new(FileOptions::new().write(true).open(&path).unwrap());
    assert_eq!(
        opened.backend().to_string(),
        "posix: the file is in memory (tmpfs); writes copy through a mapping"
    );
    let old = SystemTime::UNIX_EPOCH + Duration::from_secs(1);
    file.set_modified(old).unwrap();
    let (memory, from) = target(content.len());
    memory.fill(&content);
    let ring = ring(SimulatedDevice::new(), 3, 4);
    ring.write(from.clone(), opened.clone(), 5).wait().unwrap();
    assert!(is_mapped_for_writing(&file), "the writes did not go to pwrite");
    assert!(file.metadata().unwrap().modified().unwrap() > old, "the time of the modification is kept");
    let written = fs::read(&path).unwrap();
    assert!(written[..5] == [0; 5] && written[5..] == content);
    memory.fill(&vec![0; content.len()]);
    ring.read(opened, 5, from).wait().unwrap();
    assert!(memory.content() == content);
}

#[test]
fn a_file_that_may_not_be_written_refuses_a_write_through_a_mapping() {
    let (file, path) = memory_file(1 << 20);
    // By `auto`: a mapping for reads would forbid the seal.
    let opened = FileOptions::new().write(true).open(&path).unwrap();
    nix::fcntl::fcntl(&file, nix::fcntl::FcntlArg::F_ADD_SEALS(nix::fcntl::SealFlag::F_SEAL_WRITE)).unwrap();
    let error = opened.write_at(&[1; 1 << 18], 0).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::PermissionDenied, "{error}");
    assert!(fs::read(&path).unwrap() == [0; 1 << 20]);
}

#[test]
fn a_file_that_shrinks_while_it_is_written_does_not_end_the_process() {
    let content = pattern(1 << 20, 8);
    let (file, path) = memory_file(content.len());
    let mapped = open(&path);
    assert_eq!(mapped.write_at(&content, 0).unwrap(), content.len());
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                file.set_len(0).unwrap();
            }
        });
        for _ in 0..300 {
            let mut written = 0;
            while written < content.len() {
                written += mapped.write_at(&content[written..], written as u64).unwrap();
            }
        }
        done.store(true, Ordering::Relaxed);
    });
    file.set_len(content.len() as u64).unwrap();
    assert_eq!(mapped.write_at(&content, 0).unwrap(), content.len());
    assert!(fs::read(&path).unwrap() == content);
}

#[test]
fn a_file_that_may_not_grow_refuses_a_write_through_a_mapping() {
    let (file, path) = memory_file(SLOT);
    let mapped = open(&path);
    nix::fcntl::fcntl(&file, nix::fcntl::FcntlArg::F_ADD_SEALS(nix::fcntl::SealFlag::F_SEAL_GROW)).unwrap();
    assert_eq!(mapped.write_at(&[1; 100], SLOT as u64 - 100).unwrap(), 100);
    let error = mapped.write_at(&[1; 100], SLOT as u64).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::PermissionDenied, "{error}");
}

#[test]
fn a_file_on_a_disk_is_not_mapped() {
    let disk = DiskFile::new("not-mapped", &pattern(SLOT, 6));
    let error = FileOptions::new().backend(Backend::Mmap).open(&disk.0).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::Unsupported);
    assert!(error.to_string().contains("only files on tmpfs are mapped"), "{error}");
}
