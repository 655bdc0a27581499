//! Reads through a mapping of a file on tmpfs.

use std::fs;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use super::byte_source::{SLOT, pattern, ring, target};
use super::disk_file::DiskFile;
use super::memory_file::memory_file;
use crate::{Backend, File, FileOptions, ReadAt, SimulatedDevice, TransferError};

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
fn a_file_on_a_disk_is_not_mapped() {
    let disk = DiskFile::new("not-mapped", &pattern(SLOT, 6));
    let error = FileOptions::new().backend(Backend::Mmap).open(&disk.0).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::Unsupported);
    assert!(error.to_string().contains("only files on tmpfs are mapped"), "{error}");
    let error = FileOptions::new().backend(Backend::CuFile).open(&disk.0).unwrap_err();
    assert!(error.to_string().contains("open the file with CuFile"), "{error}");
}
