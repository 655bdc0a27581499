//! Transfers as futures.

use std::sync::Arc;

use crate::{NamedFile, SimulatedDevice, TransferError};
use futures::executor::block_on;
use futures::future::join_all;

use super::byte_source::{ByteSource, pattern, ring, target};

#[test]
fn ten_thousand_transfers_need_no_thread_each() {
    const COUNT: usize = 10_000;
    const BYTES: usize = 512;
    let ring = ring(SimulatedDevice::new(), 4, 2);
    let content = pattern(COUNT * BYTES, 1);
    let source = Arc::new(ByteSource::new(content.clone()));
    let (memory, to) = target(content.len());
    let transfers = (0..COUNT).map(|number| {
        let start = (number * BYTES) as u64;
        ring.read(source.clone(), start, to.part(start..start + BYTES as u64).expect("it is within"))
    });
    let threads = || std::fs::read_dir("/proc/self/task").expect("/proc is there").count();
    let transfers: Vec<_> = transfers.collect();
    assert!(threads() < 20, "{} threads", threads());
    let results = block_on(join_all(transfers));
    assert!(results.iter().all(|result| matches!(result, Ok(bytes) if *bytes == BYTES as u64)));
    assert!(memory.content() == content);
}

#[test]
fn a_future_has_the_error() {
    let ring = ring(SimulatedDevice::new(), 4, 2);
    let folder = std::fs::File::open("/").expect("it is there");
    let (_memory, to) = target(4096);
    let error = block_on(ring.read(Arc::new(NamedFile::new("/", folder)), 0, to)).unwrap_err();
    assert!(matches!(&error, TransferError::Io { name, .. } if name == "/"), "{error}");
    let text = "reading / at offset 0: Is a directory (os error 21); 0 bytes have landed";
    assert_eq!(error.to_string(), text);
}
