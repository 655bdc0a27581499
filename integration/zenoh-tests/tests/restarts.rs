//! A producer whose reader is killed and started again many times.

use hostbuf_pool::ProducerOptions;
use hostbuf_zenoh::{PoolProvider, ProviderError};
use tempfile::TempDir;
use zenoh::Wait;
use zenoh::qos::CongestionControl;
use zenoh_tests::{BrokerThread, FRAME_BYTES, KEY, ReaderProcess, eventually, listen, restarts, stamp};

/// The number of rounds after which everything that is kept once exists.
const WARM_UP: usize = 5;

/// The shared mappings of this process, and its locked memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SharedMemory {
    mappings: usize,
    locked_kib: u64,
}

impl SharedMemory {
    fn current() -> SharedMemory {
        let read = |path| std::fs::read_to_string(path).expect("/proc is mounted");
        let maps = read("/proc/self/maps");
        let is_shared = |line: &&str| line.split(' ').nth(1).is_some_and(|access| access.ends_with('s'));
        let status = read("/proc/self/status");
        let locked = status.lines().find_map(|line| line.strip_prefix("VmLck:")).expect("a line");
        let locked = locked.trim().trim_end_matches(" kB").parse().expect("a number");
        SharedMemory { mappings: maps.lines().filter(is_shared).count(), locked_kib: locked }
    }
}

#[test]
fn restarts_of_a_reader_leave_nothing() {
    let restarts = restarts();
    let broker = BrokerThread::start();
    let pool = broker.connect("camera");
    let provider = PoolProvider::new(&pool, &ProducerOptions::new(FRAME_BYTES as u64, 4)).unwrap();
    let folder = TempDir::new().unwrap();
    let endpoint = folder.path().join("zenoh");
    let session = listen(endpoint.to_str().unwrap());
    // Otherwise zenoh drops messages on a busy machine.
    let publisher = session.declare_publisher(KEY).congestion_control(CongestionControl::Block);
    let publisher = publisher.wait().unwrap();
    let mut number = 0;
    let mut after_warm_up = None;
    for round in 0..restarts {
        let mut reader =
            ReaderProcess::start(env!("CARGO_BIN_EXE_zenoh_reader"), &endpoint, Some(broker.name()), 2);
        eventually("it subscribes", || publisher.matching_status().wait().unwrap().matching());
        for _ in 0..3 {
            let mut frame = None;
            eventually("a block becomes free", || {
                frame = provider.alloc(FRAME_BYTES).ok();
                frame.is_some()
            });
            let mut frame = frame.unwrap();
            number += 1;
            stamp(&mut frame, number);
            publisher.put(frame).wait().unwrap();
            let line = reader.next();
            assert_eq!((line.number, line.is_in_pool, line.torn), (number, true, 0));
        }
        // It holds two frames.
        reader.kill();
        eventually("its end is noticed", || !publisher.matching_status().wait().unwrap().matching());
        if round == WARM_UP {
            after_warm_up = Some(SharedMemory::current());
        }
    }
    let after_all = SharedMemory::current();
    assert_eq!(after_warm_up.expect("more restarts than warm-up rounds"), after_all);
    println!(
        "{restarts} restarts of a reader: {} shared mappings and {} KiB of locked memory as after {WARM_UP}",
        after_all.mappings, after_all.locked_kib
    );
    // And no block is lost.
    let mut all = Vec::new();
    eventually("all blocks are free", || match provider.alloc(1) {
        Ok(frame) => {
            all.push(frame);
            all.len() == 4
        }
        Err(ProviderError::Exhausted) => false,
        Err(error) => panic!("{error}"),
    });
}
