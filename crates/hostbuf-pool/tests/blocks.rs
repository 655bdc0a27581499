//! Blocks between clients of one broker, which runs in a thread of the test.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{JoinHandle, sleep};
use std::time::{Duration, Instant};

use hostbuf_pool::{
    AcquireError, ArrayLayout, Broker, BrokerOptions, BrokerRefusal, DmaPath, ElementType, Pool, PoolError,
    PoolKind, PoolMode, PoolOptions, ProducerOptions, TakeError, Token,
};
use hostbuf_register::testing::fake::Fake;
use hostbuf_register::{Access, Overlap, Span};
use nix::sys::eventfd::EventFd;

/// A broker in a thread. It ends with the test.
struct TestBroker {
    name: String,
    stop: Arc<EventFd>,
    thread: Option<JoinHandle<()>>,
}

impl TestBroker {
    fn start(options: BrokerOptions) -> TestBroker {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("hostbuf-pool-test-{}-{number}", std::process::id());
        TestBroker::start_at(name, options)
    }

    fn start_at(name: String, options: BrokerOptions) -> TestBroker {
        let mut broker = Broker::open(&options.name(&name)).expect("the name is free");
        let stop = Arc::new(EventFd::new().expect("an event descriptor"));
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || {
            use std::os::fd::AsFd;
            broker.serve(stopped.as_fd()).expect("it serves");
        });
        TestBroker { name, stop, thread: Some(thread) }
    }

    fn options(&self, client: &str) -> PoolOptions {
        PoolOptions::new(client).mode(PoolMode::Required).socket(&self.name)
    }

    fn connect(&self, client: &str) -> Pool {
        Pool::connect(self.options(client)).expect("the broker listens")
    }
}

impl Drop for TestBroker {
    fn drop(&mut self) {
        self.stop.write(1).expect("it is open");
        self.thread.take().expect("it runs").join().expect("it has not panicked");
    }
}

fn bytes(length: u64) -> ArrayLayout {
    ArrayLayout::contiguous(ElementType::UInt8, &[length]).expect("a layout")
}

/// Publishes a block whose bytes all have the value `stamp`.
fn publish(producer: &hostbuf_pool::Producer, stamp: u8) -> Token {
    let mut block = producer.take_timeout(Duration::from_secs(10)).expect("a free block");
    block.as_mut_slice().fill(stamp);
    let length = block.len() as u64;
    block.publish(bytes(length)).expect("it fits")
}

/// Waits until `condition` holds.
fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < Duration::from_secs(20), "{what}");
        sleep(Duration::from_millis(1));
    }
}

fn status(pool: &Pool) -> serde_json::Value {
    serde_json::from_str(&pool.status().expect("the broker answers")).expect("it is JSON")
}

#[test]
fn a_reader_sees_what_a_producer_has_published() {
    let broker = TestBroker::start(BrokerOptions::new());
    let (camera, viewer) = (broker.connect("camera"), broker.connect("viewer"));
    assert_eq!((camera.kind(), camera.id()), (PoolKind::Shared, viewer.id()));
    let producer = camera.producer(&ProducerOptions::new(1 << 20, 4)).unwrap();
    for stamp in 1..=20 {
        let token = publish(&producer, stamp);
        let block = viewer.acquire_bytes(&token.to_bytes()).unwrap();
        assert!(block.as_slice().iter().all(|byte| *byte == stamp));
        assert_eq!((block.len(), block.header().sequence), (1 << 20, u64::from(stamp) - 1));
        assert_eq!(block.layout().shape(), [1 << 20]);
    }
    let status = status(&viewer);
    let segment = &status["segments"][0];
    assert_eq!(segment["frames"], 20);
    assert_eq!(segment["readers"][0]["acquired"], 20);
    assert_eq!(segment["readers"][0]["name"], "viewer");
}

#[test]
fn a_private_pool_needs_no_broker() {
    let options = PoolOptions::new("alone").mode(PoolMode::Private);
    let pool = Pool::connect(options).unwrap();
    assert_eq!(pool.kind(), PoolKind::Private);
    let producer = pool.producer(&ProducerOptions::new(100, 2)).unwrap();
    let token = publish(&producer, 9);
    assert_eq!(pool.acquire(&token).unwrap().as_slice()[4095], 9);
}

#[test]
fn a_held_block_is_not_reused_and_a_late_reader_is_told() {
    let broker = TestBroker::start(BrokerOptions::new());
    let pool = broker.connect("both");
    let producer = pool.producer(&ProducerOptions::new(4096, 4).retain(1)).unwrap();
    let first = publish(&producer, 1);
    let held = pool.acquire(&first).unwrap();
    let tokens: Vec<Token> = (2..100).map(|stamp| publish(&producer, stamp)).collect();
    assert!(held.as_slice().iter().all(|byte| *byte == 1));
    let (last, earlier) = tokens.split_last().unwrap();
    for token in earlier.iter().chain([&first]) {
        assert!(matches!(pool.acquire(token), Err(AcquireError::Gone)));
    }
    assert_eq!(pool.acquire(last).unwrap().as_slice()[0], 99);
    let future = Token { generation: last.generation + 1, ..*last };
    assert!(matches!(pool.acquire(&future), Err(AcquireError::NotPublished)));
    for wrong in [Token { block: 4, ..*last }, Token { length: 4097, ..*last }, Token { length: 1, ..*last }]
    {
        assert!(matches!(pool.acquire(&wrong), Err(AcquireError::OutOfRange)));
    }
    let other = Token { pool: hostbuf_pool::PoolId::from_bits(1), ..*last };
    assert!(matches!(pool.acquire(&other), Err(AcquireError::OtherPool { .. })));
}

#[test]
fn a_reader_holds_at_most_its_quota() {
    let broker = TestBroker::start(BrokerOptions::new());
    let pool = broker.connect("both");
    let producer = pool.producer(&ProducerOptions::new(4096, 4).quota(2).retain(3)).unwrap();
    let tokens: Vec<Token> = (0..3).map(|stamp| publish(&producer, stamp)).collect();
    let held = [&tokens[0], &tokens[1]].map(|token| pool.acquire(token).unwrap());
    assert!(matches!(pool.acquire(&tokens[2]), Err(AcquireError::Quota { quota: 2 })));
    // Another hold of a held block is no further block.
    let again = pool.acquire(&tokens[1]).unwrap();
    let clone = held[0].clone();
    drop((held, again));
    assert_eq!(clone.as_slice()[0], 0);
    pool.acquire(&tokens[2]).unwrap();
}

#[test]
fn a_producer_waits_for_a_block_until_a_reader_releases_one() {
    let broker = TestBroker::start(BrokerOptions::new());
    let (camera, viewer) = (broker.connect("camera"), broker.connect("viewer"));
    let producer = camera.producer(&ProducerOptions::new(4096, 2).retain(1).quota(2)).unwrap();
    for round in 0..200 {
        let first = viewer.acquire(&publish(&producer, 1)).unwrap();
        let second = viewer.acquire(&publish(&producer, 2)).unwrap();
        assert!(producer.try_take().unwrap().is_none());
        if round == 0 {
            let error = producer.take_timeout(Duration::from_millis(5)).unwrap_err();
            let TakeError::Timeout { .. } = error else { panic!("{error}") };
            let reader = format!("reader 0 (process {}) holds 2", std::process::id());
            assert!(error.to_string().contains(&reader), "{error}");
        }
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| drop(producer.take().unwrap()));
            drop(first);
            waiting.join().unwrap();
        });
        drop(second);
    }
}

#[test]
fn a_producer_waits_for_the_readers_that_it_names() {
    let broker = TestBroker::start(BrokerOptions::new());
    let (camera, recorder) = (broker.connect("camera"), broker.connect("recorder"));
    let options = ProducerOptions::new(4096, 3).retain(1).wait_for("recorder");
    let producer = camera.producer(&options).unwrap();
    let tokens: Vec<Token> = (0..3).map(|stamp| publish(&producer, stamp)).collect();
    let error = producer.take_timeout(Duration::from_millis(1)).unwrap_err().to_string();
    assert!(error.contains("the reader recorder has not attached yet"), "{error}");
    // It reads all three, although only one is retained for others.
    for (stamp, token) in (0..).zip(&tokens[..2]) {
        assert_eq!(recorder.acquire(token).unwrap().as_slice()[0], stamp);
    }
    drop(producer.take_timeout(Duration::from_secs(10)).expect("the recorder has read two"));
    recorder.skip(&tokens[2]).unwrap();
    // A reader that has ended is not waited for.
    drop(recorder);
    for stamp in 3..20 {
        publish(&producer, stamp);
    }
}

#[test]
fn limits_are_exact_and_refusals_name_the_holders() {
    const MIB: u64 = 1 << 20;
    let broker = TestBroker::start(BrokerOptions::new().limit(64 * MIB).per_client(40 * MIB));
    let (first, second) = (broker.connect("first"), broker.connect("second"));
    let half = ProducerOptions::new(8 * MIB, 4);
    let refused = |pool: &Pool, options: &ProducerOptions| match pool.producer(options) {
        Err(PoolError::Refused(BrokerRefusal::NoSpace { requested, available, details })) => {
            (requested / MIB, available / MIB, details)
        }
        other => panic!("{other:?}"),
    };
    let one = first.producer(&half).unwrap();
    let (requested, available, details) = refused(&first, &half);
    assert_eq!((requested, available), (32, 7));
    assert!(details.contains("--per-client"), "{details}");
    let (_, available, details) = refused(&second, &half);
    assert_eq!(available, 31);
    assert!(details.contains("--limit") && details.contains("first (process"), "{details}");
    drop(one);
    // The broker has read that it was closed, since it answers on the same connection.
    assert_eq!(status(&first)["segments"][0]["stage"], "orphaned");
    // Nobody reads what the first has published, so its memory is not kept for late readers.
    let one = second.producer(&half).unwrap();
    assert_eq!(status(&first)["bytes"].as_u64().unwrap() / MIB, 32);
    drop(one);
}

#[test]
fn blocks_outlive_their_producer() {
    let linger = Duration::from_millis(100);
    let broker = TestBroker::start(BrokerOptions::new().linger(linger));
    let (camera, viewer) = (broker.connect("camera"), broker.connect("viewer"));
    let producer = camera.producer(&ProducerOptions::new(4096, 4)).unwrap();
    let tokens = [1, 2].map(|stamp| publish(&producer, stamp));
    let held = viewer.acquire(&tokens[0]).unwrap();
    drop((producer, camera));
    eventually("the segment is retired", || status(&viewer)["segments"][0]["stage"] == "retired");
    assert!(matches!(viewer.acquire(&tokens[1]), Err(AcquireError::Gone)));
    assert!(held.as_slice().iter().all(|byte| *byte == 1));
    drop(held);
    eventually("the segment ends", || status(&viewer)["bytes"] == 0);
    assert_eq!(status(&viewer)["segments"].as_array().unwrap().len(), 0);
}

#[test]
fn a_block_that_is_not_published_is_held_and_retired() {
    let broker = TestBroker::start(BrokerOptions::new().linger(Duration::ZERO));
    let (camera, viewer) = (broker.connect("camera"), broker.connect("viewer"));
    let producer = camera.producer(&ProducerOptions::new(4096, 2).quota(2)).unwrap();
    let reader = viewer.attach(producer.segment()).unwrap();
    assert_eq!((reader.key(), reader.blocks(), reader.block_bytes()), (producer.segment(), 2, 4096));
    let mut block = producer.take().unwrap();
    block.as_mut_slice().fill(7);
    let (number, low) = (block.number(), block.generation() as u32);
    assert!(matches!(reader.hold(number, low + 1), Err(AcquireError::Gone)));
    assert!(matches!(reader.hold(2, low), Err(AcquireError::OutOfRange)));
    let held = reader.hold(number, low).unwrap();
    let again = reader.hold(number, low).unwrap();
    block.retire();
    assert!(matches!(reader.hold(number, low), Err(AcquireError::Gone)));
    let other = producer.take().unwrap();
    assert!(producer.try_take().unwrap().is_none(), "a held block is taken");
    drop(held);
    assert!(producer.try_take().unwrap().is_none(), "a held block is taken");
    drop(again);
    assert_eq!(producer.try_take().unwrap().expect("it is free").number(), number);
    drop(other);
    assert_eq!(producer.departures(), 0);
    // The segment stays attached without the handle of the pool, until its producer ends.
    drop(viewer);
    let block = producer.take().unwrap();
    let held = reader.hold(block.number(), block.generation() as u32).unwrap();
    drop((block, producer, camera));
    assert!(!reader.is_ended());
    drop(held);
    eventually("the segment ends", || reader.is_ended());
}

#[test]
fn a_new_broker_takes_over_what_clients_have() {
    let name = format!("hostbuf-pool-test-restart-{}", std::process::id());
    let broker = TestBroker::start_at(name.clone(), BrokerOptions::new());
    let (camera, viewer) = (broker.connect("camera"), broker.connect("viewer"));
    let producer = camera.producer(&ProducerOptions::new(4096, 4)).unwrap();
    let token = publish(&producer, 1);
    let held = viewer.acquire(&token).unwrap();
    let bytes = status(&viewer)["bytes"].clone();
    let pool = viewer.id();
    drop(broker);
    // Nothing is interrupted meanwhile.
    let second = publish(&producer, 2);
    let both = [held, viewer.acquire(&second).unwrap()];
    let broker = TestBroker::start_at(name, BrokerOptions::new());
    eventually("both reconnect", || viewer.id() != pool && camera.id() != pool);
    let fresh = broker.connect("fresh");
    eventually("both have handed back", || {
        let status = status(&fresh);
        status["bytes"] == bytes && status["segments"][0]["readers"][0]["holds"] == 2
    });
    // A reader that comes later reads from the old segment.
    assert_eq!(fresh.acquire(&second).unwrap().as_slice()[0], 2);
    drop((both, producer, camera, viewer));
    eventually("the old segment is orphaned", || status(&fresh)["segments"][0]["producer"].is_null());
    let producer = fresh.producer(&ProducerOptions::new(4096, 4)).unwrap();
    publish(&producer, 3);
}

/// A completion that a test decides.
struct Told(Arc<AtomicBool>);

impl hostbuf_pool::Completion for Told {
    fn is_complete(&self) -> std::io::Result<bool> {
        Ok(self.0.load(Ordering::Acquire))
    }

    fn wait(&self) -> std::io::Result<()> {
        unreachable!("there is a thread for releases")
    }
}

#[test]
fn a_device_reads_a_held_block_until_its_operation_has_completed() {
    let broker = TestBroker::start(BrokerOptions::new());
    let (camera, viewer) = (broker.connect("camera"), broker.connect("viewer"));
    let producer = camera.producer(&ProducerOptions::new(8192, 2).retain(1)).unwrap();
    let device = "mlock".parse().unwrap();
    for stamp in 1..=20 {
        let block = viewer.acquire(&publish(&producer, stamp)).unwrap();
        let DmaPath::Direct(address) = block.dma(&device) else { panic!("mlock registers") };
        // Locked memory has the addresses of the process.
        assert_eq!(address, block.as_ptr() as u64);
        let is_done = Arc::new(AtomicBool::new(false));
        block.release_after(Told(is_done.clone()));
        // The next frame retires this one, which the device still reads.
        publish(&producer, stamp + 100);
        assert!(producer.try_take().unwrap().is_none(), "a block that a device reads was taken");
        is_done.store(true, Ordering::Release);
        drop(producer.take_timeout(Duration::from_secs(10)).expect("the device has finished"));
    }
}

#[test]
fn a_device_that_does_not_exist_is_a_reason_to_copy() {
    let pool = Pool::connect(PoolOptions::new("alone").mode(PoolMode::Private)).unwrap();
    let producer = pool.producer(&ProducerOptions::new(4096, 2)).unwrap();
    let block = pool.acquire(&publish(&producer, 1)).unwrap();
    let path = block.dma(&"cuda:4095".parse().unwrap());
    let DmaPath::Copy(why) = path else { panic!("there is no such GPU") };
    assert!(why.to_string().starts_with("the device cannot be used: "), "{why}");
    assert_eq!(block.as_slice()[0], 1);
}

#[test]
fn a_client_that_reads_what_it_produced_keeps_its_hold() {
    let linger = Duration::from_millis(20);
    let broker = TestBroker::start(BrokerOptions::new().linger(linger));
    let (pool, watcher) = (broker.connect("both"), broker.connect("watcher"));
    let producer = pool.producer(&ProducerOptions::new(4096, 2)).unwrap();
    let held = pool.acquire(&publish(&producer, 7)).unwrap();
    drop(producer);
    eventually("it is retired", || status(&watcher)["segments"][0]["stage"] == "retired");
    assert_eq!(status(&watcher)["segments"][0]["readers"][0]["holds"], 1);
    assert_eq!(held.as_slice()[4095], 7);
    drop(held);
    eventually("the segment ends", || status(&watcher)["bytes"] == 0);
}

#[test]
fn holds_and_producers_keep_the_connection_of_a_dropped_pool() {
    let broker = TestBroker::start(BrokerOptions::new().linger(Duration::ZERO));
    let watcher = broker.connect("watcher");
    let pool = broker.connect("both");
    let producer = pool.producer(&ProducerOptions::new(4096, 2)).unwrap();
    let held = pool.acquire(&publish(&producer, 1)).unwrap();
    drop(pool);
    let block = producer.take_timeout(Duration::from_secs(10)).unwrap();
    drop(producer);
    assert_eq!(held.as_slice()[0], 1);
    drop((block, held));
    eventually("the client has ended", || status(&watcher)["clients"].as_array().unwrap().len() <= 1);
    assert_eq!(status(&watcher)["bytes"], 0);
}

#[test]
fn a_published_block_wakes_a_thread_that_waits_for_the_one_before_it() {
    let broker = TestBroker::start(BrokerOptions::new());
    let pool = broker.connect("both");
    let producer = pool.producer(&ProducerOptions::new(4096, 2).retain(1)).unwrap();
    for stamp in 0..200 {
        publish(&producer, stamp);
        let second = producer.take_timeout(Duration::from_secs(10)).unwrap();
        assert!(producer.try_take().unwrap().is_none());
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| producer.take_timeout(Duration::from_secs(10)).unwrap());
            second.publish(bytes(4096)).expect("it fits");
            drop(waiting.join().unwrap());
        });
    }
}

#[test]
fn a_named_reader_that_attaches_again_is_waited_for_from_then_on() {
    let broker = TestBroker::start(BrokerOptions::new());
    let camera = broker.connect("camera");
    let options = ProducerOptions::new(4096, 4).retain(1).wait_for("recorder");
    let producer = camera.producer(&options).unwrap();
    for round in 0..5 {
        let recorder = broker.connect("recorder");
        for stamp in 0..10 {
            let token = publish(&producer, stamp);
            assert_eq!(recorder.acquire(&token).unwrap().as_slice()[0], stamp);
        }
        drop(recorder);
        // Nobody is waited for meanwhile.
        for stamp in 0..10 {
            publish(&producer, stamp + round);
        }
    }
    let late = broker.connect("recorder");
    // The first token after it has connected attaches it, and its block is kept for it.
    let token = publish(&producer, 50);
    late.skip(&token).unwrap();
    let tokens: Vec<Token> = (0..3).map(|stamp| publish(&producer, stamp)).collect();
    for (stamp, token) in (0..).zip(&tokens) {
        assert_eq!(late.acquire(token).unwrap().as_slice()[0], stamp);
    }
}

#[test]
fn numbers_beyond_any_range_are_no_panic() {
    let pool =
        Pool::connect(PoolOptions::new("alone").mode(PoolMode::Private).timeout(Duration::MAX)).unwrap();
    let producer = pool.producer(&ProducerOptions::new(4096, 2)).unwrap();
    let token = publish(&producer, 1);
    for generation in [token.generation + 1, u64::MAX >> 2, u64::MAX] {
        let future = Token { generation, ..token };
        assert!(matches!(pool.skip(&future), Err(AcquireError::NotPublished)));
        assert!(matches!(pool.acquire(&future), Err(AcquireError::NotPublished)));
    }
    drop(producer.take_timeout(Duration::MAX).unwrap());
}

#[test]
fn a_segment_is_registered_once_for_each_registrar_and_access_until_it_goes() {
    let broker = TestBroker::start(BrokerOptions::new());
    let (writer, reader) = (broker.connect("writer"), broker.connect("reader"));
    let producer =
        writer.producer(&ProducerOptions::new(4096, 3).retain(2).quota(3)).expect("there is memory");
    let [one, other] = [0, 1].map(|_| Arc::new(Fake::new(Overlap::Free)));
    let mut holds = Vec::new();
    for _ in 0..2 {
        let mut block = producer.take().expect("a block");
        block.register(&one, Access::WRITE).expect("it registers");
        let address = block.as_mut_ptr() as usize;
        let (_, span, access) = *one.live().first().expect("a registration");
        assert!(span.contains(Span::new(address, 4096).expect("a block")) && access == Access::WRITE);
        let held = reader.acquire(&block.publish(bytes(4096)).expect("it fits")).expect("it is published");
        held.register(&one, Access::REMOTE_READ).expect("it registers");
        held.register(&other, Access::REMOTE_READ).expect("it registers");
        holds.push(held);
    }
    assert_eq!((one.made(), one.live().len(), other.made()), (2, 2, 1));
    drop((holds, reader));
    assert_eq!((one.live().len(), other.live().len()), (1, 0), "the reader's registrations have ended");
    drop((producer, writer));
    assert_eq!(one.live().len(), 0, "the producer's registration has ended");
}

/// A late token of the own pool, and one of a pool to which the process was never connected.
#[test]
fn a_token_of_another_pool_has_an_error_of_its_own() {
    let broker = TestBroker::start(BrokerOptions::new());
    let viewer = broker.connect("viewer");
    let camera = Pool::connect(PoolOptions::new("camera").mode(PoolMode::Private)).expect("a private pool");
    let options = ProducerOptions::new(4096, 2);
    let token = publish(&camera.producer(&options).expect("memory"), 1);
    let refused = viewer.acquire(&token).map(drop).expect_err("a token of another pool is acquired");
    assert!(matches!(&refused, AcquireError::OtherPool { token, .. } if *token == camera.id()), "{refused}");
    let text = refused.to_string();
    assert!(text.contains(&format!("that of the broker at @{}", broker.name)), "{text}");
    let own = publish(&viewer.producer(&options).expect("memory"), 2);
    let text = camera.acquire(&own).map(drop).expect_err("it is of another pool").to_string();
    assert!(text.contains("private, as it has requested"), "{text}");
    let gone = Token { segment: own.segment + 1, ..own };
    assert!(matches!(viewer.acquire(&gone).map(drop), Err(AcquireError::Gone)));
    // Clients that have found no broker. The command starts one where they have looked.
    let nobody = PoolOptions::new("early").socket(format!("{}-later", broker.name));
    let path = format!("/tmp/{}.socket", broker.name);
    for (options, command) in [
        (nobody.clone(), format!("hostbuf broker --name {})", nobody.socket)),
        (nobody.path(&path), format!("hostbuf broker --path {path})")),
    ] {
        let early = Pool::connect(options).expect("a private pool");
        let text = early.acquire(&own).map(drop).expect_err("it is of another pool").to_string();
        assert!(text.contains(&command) && !text.contains("private-"), "{text}");
    }
}
