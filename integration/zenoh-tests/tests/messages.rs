//! Messages between processes: in place, or copied, and never torn.

use std::time::{Duration, Instant};

use hostbuf_pool::{Pool, PoolMode, PoolOptions, ProducerOptions, SegmentKey};
use hostbuf_zenoh::{PoolProvider, ProviderError, client_storage, protocol_id};
use nix::sys::signal::Signal;
use tempfile::TempDir;
use zenoh::qos::CongestionControl;
use zenoh::{Session, Wait};
use zenoh_tests::{BrokerThread, FRAME_BYTES, KEY, ReaderLine, ReaderProcess, eventually, listen, stamp};

const READER: &str = env!("CARGO_BIN_EXE_zenoh_reader");
const BLOCKS: u32 = 4;

/// A producer, its session and its broker.
struct Scene {
    broker: BrokerThread,
    pool: Pool,
    provider: PoolProvider,
    session: Session,
    folder: TempDir,
    next: u64,
}

impl Scene {
    fn new() -> Scene {
        let broker = BrokerThread::start();
        let pool = broker.connect("camera");
        let provider = PoolProvider::new(&pool, &ProducerOptions::new(FRAME_BYTES as u64, BLOCKS));
        let folder = TempDir::new().expect("a folder");
        let session = listen(folder.path().join("zenoh").to_str().expect("a text"));
        Scene { broker, pool, provider: provider.expect("a segment"), session, folder, next: 1 }
    }

    fn reader(&self, has_broker: bool, held: usize) -> ReaderProcess {
        let broker = has_broker.then(|| self.broker.name());
        ReaderProcess::start(READER, &self.folder.path().join("zenoh"), broker, held)
    }

    /// Returns the number of blocks that each reader holds.
    fn holds(&self) -> Vec<u64> {
        let status = self.pool.status().expect("the broker answers");
        let status: serde_json::Value = serde_json::from_str(&status).expect("it is JSON");
        let readers = status["segments"][0]["readers"].as_array().expect("a list");
        readers.iter().map(|reader| reader["holds"].as_u64().expect("a number")).collect()
    }

    /// Waits until a reader has subscribed.
    fn wait_for_readers(&self) {
        let publisher = self.session.declare_publisher(KEY).wait().expect("a publisher");
        let matching = || publisher.matching_status().wait().expect("a status").matching();
        eventually("the reader subscribes", matching);
    }

    /// Sends the next frame if there is a block.
    fn send(&mut self) -> Result<u64, ProviderError> {
        let mut frame = self.provider.alloc(FRAME_BYTES)?;
        let number = self.next;
        stamp(&mut frame, number);
        // Otherwise zenoh drops messages on a busy machine.
        let put = self.session.put(KEY, frame).congestion_control(CongestionControl::Block);
        put.wait().expect("it is sent");
        self.next += 1;
        Ok(number)
    }

    /// Sends the next frame when there is a block.
    fn send_eventually(&mut self) -> u64 {
        let mut sent = None;
        eventually("a block becomes free", || {
            sent = self.send().ok();
            sent.is_some()
        });
        sent.expect("it was sent")
    }
}

#[test]
fn a_message_is_read_in_place() {
    let mut scene = Scene::new();
    let reader = scene.reader(true, 1);
    scene.wait_for_readers();
    for _ in 0..50 {
        let number = scene.send_eventually();
        let expected = ReaderLine { number, length: FRAME_BYTES, is_shared: true, is_in_pool: true, torn: 0 };
        assert_eq!(reader.next(), expected);
    }
}

#[test]
fn a_session_without_the_protocol_gets_a_copy() {
    let mut scene = Scene::new();
    let reader = scene.reader(false, 1);
    scene.wait_for_readers();
    for _ in 0..10 {
        let number = scene.send_eventually();
        let line = reader.next();
        // zenoh may have copied it to shared memory of its own.
        let expected = ReaderLine { number, length: FRAME_BYTES, is_in_pool: false, torn: 0, ..line };
        assert_eq!(line, expected);
    }
}

#[test]
fn both_kinds_of_readers_get_the_same_message() {
    let mut scene = Scene::new();
    let in_place = scene.reader(true, 1);
    scene.wait_for_readers();
    let copying = scene.reader(false, 1);
    eventually("the second reader has subscribed", || {
        let number = scene.send_eventually();
        assert_eq!(
            in_place.next(),
            ReaderLine { number, length: FRAME_BYTES, is_shared: true, is_in_pool: true, torn: 0 }
        );
        scene.next > 5
    });
    // The first frames may have been sent before it had subscribed.
    let line = copying.next();
    assert_eq!((line.length, line.is_in_pool, line.torn), (FRAME_BYTES, false, 0));
}

#[test]
fn a_session_without_a_broker_does_not_announce_the_protocol() {
    let private = Pool::connect(PoolOptions::new("alone").mode(PoolMode::Private)).unwrap();
    let storage = client_storage(&private).unwrap();
    assert_eq!(storage.supported_protocols(), [0]);
    let broker = BrokerThread::start();
    let pool = broker.connect("reader");
    let mut expected = vec![0, protocol_id(pool.id())];
    expected.sort_unstable();
    assert_eq!(client_storage(&pool).unwrap().supported_protocols(), expected);
}

#[test]
fn a_message_that_no_block_fits_is_refused() {
    let scene = Scene::new();
    for length in [0, FRAME_BYTES + 4096] {
        assert!(matches!(scene.provider.alloc(length), Err(ProviderError::TooLong { .. })), "{length}");
    }
    let all: Vec<_> = (0..BLOCKS).map(|_| scene.provider.alloc(1).unwrap()).collect();
    assert!(matches!(scene.provider.alloc(1), Err(ProviderError::Exhausted)));
    drop(all);
    scene.provider.alloc(FRAME_BYTES).unwrap();
}

#[test]
fn a_message_outlives_its_provider() {
    let scene = Scene::new();
    let mut frame = scene.provider.alloc(FRAME_BYTES).unwrap();
    drop(scene);
    stamp(&mut frame, 9);
    assert_eq!(zenoh_tests::torn_stamps(&frame), (9, 0));
}

/// zenoh may decrement the count of another message by mistake. Here it knows nothing of the
/// reader.
#[test]
fn a_block_that_zenoh_no_longer_counts_waits_for_its_reader() {
    let broker = BrokerThread::start();
    let provider = PoolProvider::new(&broker.connect("camera"), &ProducerOptions::new(FRAME_BYTES as u64, 2));
    let provider = provider.expect("a segment");
    let pool = broker.connect("reader");
    let status: serde_json::Value = serde_json::from_str(&pool.status().unwrap()).expect("it is JSON");
    let number = status["segments"][0]["segment"].as_u64().expect("a number") as u32;
    let reader = pool.attach(SegmentKey { pool: pool.id(), number }).expect("the segment");
    let frame = provider.alloc(FRAME_BYTES).expect("the first block");
    let held = reader.hold(0, 1).expect("the first generation of the first block");
    drop(frame);
    let _other = provider.alloc(FRAME_BYTES).expect("the second block");
    assert!(matches!(provider.alloc(1), Err(ProviderError::Exhausted)), "a held block is given out");
    drop(held);
    provider.alloc(1).expect("the first block");
}

#[test]
fn a_reader_unmaps_the_segment_of_a_producer_that_has_ended() {
    let mut scene = Scene::new();
    let reader = scene.reader(true, 0);
    scene.wait_for_readers();
    for _ in 0..3 {
        let number = scene.send_eventually();
        assert_eq!((reader.next().number, reader.mapped_segments()), (number, 1));
        let options = ProducerOptions::new(FRAME_BYTES as u64, BLOCKS);
        scene.provider = PoolProvider::new(&scene.pool, &options).expect("a segment");
        eventually("the segment is unmapped", || reader.mapped_segments() == 0);
    }
}

/// zenoh alone never gets these blocks back.
#[test]
fn the_blocks_of_a_killed_reader_are_back_in_a_tenth_of_a_second() {
    let mut scene = Scene::new();
    let mut times = Vec::new();
    for _ in 0..5 {
        let mut reader = scene.reader(true, BLOCKS as usize);
        scene.wait_for_readers();
        for _ in 0..BLOCKS {
            let number = scene.send_eventually();
            assert_eq!(reader.next().number, number);
        }
        assert!(matches!(scene.provider.alloc(1), Err(ProviderError::Exhausted)));
        reader.signal(Signal::SIGKILL);
        let begun = Instant::now();
        let mut all = Vec::new();
        eventually("the blocks are back", || {
            all.extend(scene.provider.alloc(1).ok());
            all.len() == BLOCKS as usize
        });
        times.push(begun.elapsed());
        reader.kill();
    }
    // The best of five: other processes may have the processors.
    let best = times.iter().min().expect("five");
    assert!(*best <= Duration::from_millis(100), "{times:?}");
    println!("all blocks are back after {times:?}");
}

#[test]
fn what_a_living_reader_holds_is_not_taken_back() {
    let mut scene = Scene::new();
    let keeper = scene.reader(true, 1);
    let mut other = scene.reader(true, BLOCKS as usize);
    scene.wait_for_readers();
    let mut last = 0;
    // Frames before the second subscription are read by the first reader only.
    eventually("both readers have a frame", || {
        last = scene.send_eventually();
        assert_eq!(keeper.next().number, last);
        other.try_next().is_some()
    });
    // A hold ends a moment after zenoh has dropped the buffer.
    eventually("the first reader holds one block", || scene.holds()[0] == 1);
    // It holds what it has, for longer than zenoh waits for a confirmation.
    keeper.signal(Signal::SIGSTOP);
    other.kill();
    let mut all = Vec::new();
    eventually("the other blocks are back", || {
        all.extend(scene.provider.alloc(FRAME_BYTES).ok());
        all.len() == BLOCKS as usize - 1
    });
    for frame in &mut all {
        stamp(frame, u64::MAX);
    }
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_millis(500) {
        assert!(scene.provider.alloc(1).is_err(), "the block of the stopped reader is given out");
        std::thread::sleep(Duration::from_millis(5));
    }
    keeper.signal(Signal::SIGCONT);
    drop(all);
    // The reader checks its held frame with each new one, and ends if it has changed.
    for _ in 0..10 {
        let number = scene.send_eventually();
        assert_eq!((keeper.next().number, last < number), (number, true));
    }
}
