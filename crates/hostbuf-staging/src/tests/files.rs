//! Files through the page cache and past it.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use proptest::prelude::*;

use super::byte_source::{SLOT, pattern, ring, target};
use crate::{Backend, DeviceTarget, File, FileOptions, SimulatedDevice, cached_pages, drop_cached_pages};

/// A file in the folder of the tests' programs, which is on a disk. Dropping it removes it.
struct DiskFile(PathBuf);

impl DiskFile {
    fn new(name: &str, content: &[u8]) -> DiskFile {
        let program = std::env::current_exe().expect("this test");
        let path = program.with_file_name(format!("staging-{name}-{}", std::process::id()));
        fs::write(&path, content).expect("the folder is writable");
        DiskFile(path)
    }

    /// Opens the file past the page cache, unless its file system refuses that.
    fn direct(&self) -> Option<File> {
        match FileOptions::new().backend(Backend::Direct).write(true).open(&self.0) {
            Ok(file) => Some(file),
            Err(error) if error.kind() == std::io::ErrorKind::Unsupported => {
                eprintln!("skipped: reads and writes past the page cache: {error}");
                None
            }
            Err(error) => panic!("{error}"),
        }
    }
}

impl Drop for DiskFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

#[test]
fn both_ways_read_and_write_the_same_bytes() {
    let content = pattern(5 * SLOT + 777, 1);
    let disk = DiskFile::new("both", &content);
    let posix = FileOptions::new().backend(Backend::Posix).write(true).open(&disk.0).unwrap();
    assert_eq!((posix.backend().backend, posix.bytes().unwrap()), (Backend::Posix, content.len() as u64));
    let ring = ring(SimulatedDevice::new(), 3, 2);
    let end = content.len();
    for file in [Some(posix), disk.direct()].into_iter().flatten() {
        let file = Arc::new(file);
        for (offset, bytes) in [(0, end), (1, end - 1), (4095, 2 * SLOT), (end - 3, 3)] {
            let (memory, all) = target(bytes);
            ring.read(file.clone(), offset as u64, all.clone()).wait().unwrap();
            assert!(memory.content() == content[offset..offset + bytes], "{bytes} bytes at {offset}");
            memory.fill(&pattern(bytes, 2));
            ring.write(all.clone(), file.clone(), offset as u64).wait().unwrap();
            let now = fs::read(&disk.0).unwrap();
            assert!(now[offset..offset + bytes] == pattern(bytes, 2) && now[..offset] == content[..offset]);
            memory.fill(&content[offset..offset + bytes]);
            ring.write(all, file.clone(), offset as u64).wait().unwrap();
        }
        file.sync().unwrap();
        assert!(fs::read(&disk.0).unwrap() == content);
    }
}

#[test]
fn the_way_depends_on_the_page_cache() {
    let content = pattern(4 * SLOT, 3);
    let disk = DiskFile::new("auto", &content);
    let cached = File::open(&disk.0).unwrap();
    let Ok(pages) = cached_pages(cached.as_std()) else {
        assert!(cached.backend().why.contains("does not tell"), "{}", cached.backend());
        return;
    };
    assert_eq!((pages.cached, cached.backend().backend), (pages.pages, Backend::Posix));
    assert_eq!(cached.backend().to_string(), "posix: 100 % of it is in the page cache");
    drop_cached_pages(cached.as_std()).unwrap();
    let pages = cached_pages(cached.as_std()).unwrap();
    assert_eq!((pages.cached, pages.dirty), (0, 0));
    let from_disk = File::open(&disk.0).unwrap();
    let expected = if disk.direct().is_some() { Backend::Direct } else { Backend::Posix };
    assert_eq!(from_disk.backend().backend, expected, "{}", from_disk.backend());
    let (memory, to) = target(content.len());
    ring(SimulatedDevice::new(), 2, 2).read(Arc::new(from_disk), 0, to).wait().unwrap();
    assert!(memory.content() == content);
}

#[test]
fn a_file_that_is_not_there_is_named() {
    let error = File::open("/no/such/file").unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::NotFound);
    assert!(error.to_string().starts_with("/no/such/file: "), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn any_range_is_written_past_the_page_cache(
        offset in 0usize..20_000,
        bytes in 1usize..3 * SLOT,
        seed: u64,
    ) {
        let disk = DiskFile::new("ranges", &pattern(4 * SLOT, seed));
        let Some(file) = disk.direct() else { return Ok(()) };
        let (memory, _) = target(bytes);
        memory.fill(&pattern(bytes, seed ^ 1));
        let ring = ring(SimulatedDevice::new(), 2, 2);
        let written = ring.write(DeviceTarget::new(memory), Arc::new(file), offset as u64).wait();
        prop_assert_eq!(written.map_err(|error| TestCaseError::fail(error.to_string()))?, bytes as u64);
        let mut expected = pattern(4 * SLOT, seed);
        expected[offset..offset + bytes].copy_from_slice(&pattern(bytes, seed ^ 1));
        prop_assert!(fs::read(&disk.0).unwrap() == expected);
    }
}
