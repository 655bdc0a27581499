//! Files through the page cache and bypassing it.

use std::fs;
use std::sync::Arc;

use proptest::prelude::*;

use super::byte_source::{SLOT, pattern, ring, target};
use super::disk_file::DiskFile;
use crate::{
    Backend, DeviceTarget, File, FileOptions, OpenError, SimulatedDevice, TransferPart, cached_pages,
    drop_cached_pages,
};

#[test]
fn all_ways_read_and_write_the_same_bytes() {
    let content = pattern(5 * SLOT + 777, 1);
    let disk = DiskFile::new("all-ways", &content);
    let posix = FileOptions::new().backend(Backend::Posix).write(true).open(&disk.0).unwrap();
    assert_eq!((posix.backend().backend, posix.bytes().unwrap()), (Backend::Posix, content.len() as u64));
    let ring = ring(SimulatedDevice::new(), 3, 2);
    let end = content.len();
    for file in [Some(posix), disk.direct(), disk.open(Backend::Uring)].into_iter().flatten() {
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
fn the_backend_depends_on_the_page_cache() {
    let content = pattern(4 * SLOT, 3);
    let disk = DiskFile::new("auto", &content);
    let cached = File::open(&disk.0).unwrap();
    let Ok(pages) = cached_pages(cached.as_std()) else {
        assert!(cached.backend().why.contains("does not report"), "{}", cached.backend());
        return;
    };
    assert_eq!((pages.cached, cached.backend().backend), (pages.pages, Backend::Posix));
    assert_eq!(cached.backend().to_string(), "posix: 100 % of it is in the page cache");
    drop_cached_pages(cached.as_std()).unwrap();
    let pages = cached_pages(cached.as_std()).unwrap();
    assert_eq!((pages.cached, pages.dirty), (0, 0));
    let from_disk = File::open(&disk.0).unwrap();
    let expected = match (disk.direct(), disk.open(Backend::Uring)) {
        (None, _) => Backend::Posix,
        (Some(_), None) => Backend::Direct,
        (Some(_), Some(_)) => Backend::Uring,
    };
    assert_eq!(from_disk.backend().backend, expected, "{}", from_disk.backend());
    let (memory, to) = target(content.len());
    ring(SimulatedDevice::new(), 2, 2).read(Arc::new(from_disk), 0, to).wait().unwrap();
    assert!(memory.content() == content);
}

#[test]
fn a_file_starts_transfers_that_outlive_it() {
    let content = pattern(5 * SLOT + 777, 5);
    let disk = DiskFile::new("outlive", &content);
    let ring = ring(SimulatedDevice::new(), 3, 2);
    let (memory, to) = target(content.len() - 7);
    // The handle is dropped before the transfer has ended.
    let transfer = File::open(&disk.0).unwrap().pread(&ring, to, 7);
    transfer.wait().unwrap();
    assert!(memory.content() == content[7..]);
    let parts = |memory: &Arc<crate::SimulatedMemory>| {
        let all = DeviceTarget::new(memory.clone());
        let part = |from: u64, to: u64| TransferPart::new(from + 100, all.part(from..to).unwrap());
        vec![part(50_000, all.bytes()), part(0, 50_000)]
    };
    let (copy, _) = target(2 * SLOT);
    File::open(&disk.0).unwrap().pread_batch(&ring, parts(&copy)).wait().unwrap();
    assert!(copy.content() == content[100..][..2 * SLOT]);
    let file = FileOptions::new().write(true).open(&disk.0).unwrap();
    copy.fill(&pattern(2 * SLOT, 6));
    file.clone().pwrite_batch(&ring, parts(&copy)).wait().unwrap();
    file.pwrite(&ring, DeviceTarget::new(copy.clone()), 3 * SLOT as u64).wait().unwrap();
    file.sync().unwrap();
    let now = fs::read(&disk.0).unwrap();
    assert!(
        now[100..][..2 * SLOT] == pattern(2 * SLOT, 6) && now[3 * SLOT..5 * SLOT] == pattern(2 * SLOT, 6)
    );
    assert!(now[..100] == content[..100] && now[5 * SLOT..] == content[5 * SLOT..]);
}

#[test]
fn a_file_that_is_not_there_is_named() {
    let error = File::open("/no/such/file").unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::NotFound);
    assert!(error.to_string().starts_with("/no/such/file: "), "{error}");
    let inner: OpenError = error.downcast().unwrap();
    assert_eq!(inner.path.to_str(), Some("/no/such/file"));
    assert_eq!(inner.source.raw_os_error(), Some(libc::ENOENT));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn any_range_is_read_and_written_past_the_page_cache(
        offset in 0usize..20_000,
        bytes in 1usize..3 * SLOT,
        uses_uring: bool,
        seed: u64,
    ) {
        let disk = DiskFile::new("ranges", &pattern(4 * SLOT, seed));
        let backend = if uses_uring { Backend::Uring } else { Backend::Direct };
        let Some(file) = disk.open(backend) else { return Ok(()) };
        let file = Arc::new(file);
        let (memory, to) = target(bytes);
        let ring = ring(SimulatedDevice::new(), 2, 2);
        let read = ring.read(file.clone(), offset as u64, to).wait();
        prop_assert_eq!(read.map_err(|error| TestCaseError::fail(error.to_string()))?, bytes as u64);
        let mut expected = pattern(4 * SLOT, seed);
        prop_assert!(memory.content() == expected[offset..offset + bytes]);
        memory.fill(&pattern(bytes, seed ^ 1));
        let written = ring.write(DeviceTarget::new(memory), file, offset as u64).wait();
        prop_assert_eq!(written.map_err(|error| TestCaseError::fail(error.to_string()))?, bytes as u64);
        expected[offset..offset + bytes].copy_from_slice(&pattern(bytes, seed ^ 1));
        prop_assert!(fs::read(&disk.0).unwrap() == expected);
    }
}

#[test]
fn a_folder_is_refused() {
    for write in [false, true] {
        let error = FileOptions::new().write(write).open("/").unwrap_err();
        assert_eq!(error.to_string(), "/: Is a directory (os error 21)");
    }
}

#[test]
fn a_fifo_is_refused_without_a_wait() {
    let disk = DiskFile::new("fifo", &[]);
    let fifo = disk.0.with_extension("pipe");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let opened = [false, true].map(|write| FileOptions::new().write(write).open(&fifo).map(drop));
    fs::remove_file(&fifo).unwrap();
    for error in opened.map(Result::unwrap_err) {
        assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
        assert!(error.to_string().contains("it is a FIFO, whose bytes have no offsets"), "{error}");
    }
}
