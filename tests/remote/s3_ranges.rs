//! Ranges of an object of S3, by a server that answers them with status 206.

use std::sync::Arc;
use std::thread;

use hostbuf_staging::{
    BorrowedMemory, DeviceTarget, HostDevice, HostMemory, ReadAt, RemoteFile, RemoteOptions, Ring,
    RingOptions, TransferError, TransferPart,
};
use hostbuf_tests::Scratch;

use super::s3_server::{S3Server, SECRET};
use super::stored_object::{URL, store};
use super::{ExpectedBytes, both_modes, compare};

/// The length of the slots of the ring.
const SLOT: usize = 256 << 10;

fn open(server: &S3Server, options: RemoteOptions) -> RemoteFile {
    let client = server.with_secret(options, SECRET).client().expect("valid options");
    client.open(URL).expect("it is there")
}

fn ring() -> Ring<HostDevice> {
    let options = RingOptions::new().slots(3).slot_bytes(SLOT).piece_bytes(SLOT / 4).workers(4);
    let memory = HostMemory::new(options.bytes().expect("valid options"));
    Ring::new(HostDevice::new(), options, memory).expect("valid options")
}

fn target(bytes: usize) -> DeviceTarget {
    DeviceTarget::new(Arc::new(BorrowedMemory::from(HostMemory::new(bytes))))
}

#[test]
#[ignore = "needs s3s-fs (scripts/install-deps s3s-fs), which needs Rust 1.92"]
fn an_object_that_was_stored_is_read_whole_and_by_ranges() {
    let folder = Scratch::new("s3s-fs-ranges");
    let (server, content) = store(&folder, 12 * SLOT + 77);
    let ring = ring();
    let end = content.len();
    for options in both_modes() {
        let file = open(&server, options);
        compare(&file, &content);
        // The first byte, the last one, some around the ends of slots, all but the first and last.
        for range in [0..1, end - 1..end, SLOT - 1..SLOT + 1, SLOT + 3..4 * SLOT + 5, 1..end - 1] {
            let (bytes, offset) = (range.len(), range.start as u64);
            let mut read = vec![0; bytes];
            assert_eq!(file.read(&mut read, offset), Ok(bytes), "{range:?}");
            assert!(read == content[range.clone()], "{range:?}");
            let target = target(bytes);
            file.pread(&ring, target.clone(), offset).wait().expect("it is read");
            let expected = Arc::new(ExpectedBytes(content[range.clone()].to_vec()));
            ring.write(target, expected, 0).wait().unwrap_or_else(|error| panic!("{range:?}: {error}"));
        }
        assert_eq!(file.read(&mut [], 5), Ok(0));
        // A range is cut at the end of the object, and nothing is behind it.
        let mut read = [7; 10];
        assert_eq!(file.read(&mut read, end as u64 - 4), Ok(4));
        assert_eq!((&read[..4], &read[4..]), (&content[end - 4..], &[7; 6][..]));
        for offset in [end as u64, end as u64 + 1, u64::MAX] {
            assert_eq!(file.read(&mut read, offset), Ok(0), "{offset}");
        }
        for offset in [end as u64 - 4, end as u64 + 100] {
            let error = file.pread(&ring, target(10), offset).wait().expect_err("there is no such range");
            assert!(matches!(&error, TransferError::UnexpectedEnd { name, .. } if name == URL), "{error}");
        }
    }
}

#[test]
#[ignore = "needs s3s-fs (scripts/install-deps s3s-fs), which needs Rust 1.92"]
fn many_ranges_are_read_in_parallel() {
    const THREADS: usize = 8;
    const RANGES: usize = 40;
    let folder = Scratch::new("s3s-fs-parallel");
    let (server, content) = store(&folder, 12 * SLOT + 77);
    let ring = ring();
    // Ranges of all lengths up to two slots, anywhere in the object.
    let range = |thread: usize, number: usize| {
        let random = ((thread * RANGES + number) as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let bytes = 1 + (random >> 40) as usize % (2 * SLOT);
        let start = (random & 0xFFFF_FFFF) as usize % (content.len() - bytes);
        start..start + bytes
    };
    for options in both_modes() {
        let file = open(&server, options);
        thread::scope(|scope| {
            for thread in 0..THREADS {
                let (file, content, range) = (&file, &content, &range);
                scope.spawn(move || {
                    for range in (0..RANGES).map(|number| range(thread, number)) {
                        let mut bytes = vec![0; range.len()];
                        assert_eq!(file.read_at(&mut bytes, range.start as u64).ok(), Some(range.len()));
                        assert!(bytes == content[range.clone()], "{range:?}");
                    }
                });
            }
        });
        let ranges: Vec<_> = (0..RANGES).map(|number| range(THREADS, number)).collect();
        let targets: Vec<_> = ranges.iter().map(|range| target(range.len())).collect();
        let parts = ranges.iter().zip(&targets);
        let parts = parts.map(|(range, target)| TransferPart::new(range.start as u64, target.clone()));
        file.pread_batch(&ring, parts.collect()).wait().expect("all ranges are read");
        for (range, target) in ranges.into_iter().zip(targets) {
            let expected = Arc::new(ExpectedBytes(content[range.clone()].to_vec()));
            ring.write(target, expected, 0).wait().unwrap_or_else(|error| panic!("{range:?}: {error}"));
        }
    }
}
