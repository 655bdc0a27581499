//! Blocks on GPUs with a fake driver (tests/fixtures/fake_cuda.c), whose memory the CPU reaches.
//! Each test starts itself again in a process with the driver, and in further ones as the other
//! side.

#![allow(unsafe_code, reason = "the tests access the memory of the fake GPU")]

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use hostbuf_cuda::{CudaContext, CudaError, CudaEvent, CudaStream, Driver};
use hostbuf_pool::{
    AcquireError, ArrayLayout, Broker, BrokerOptions, BrokerRefusal, DmaPath, ElementType, GpuBlockRef,
    GpuProducer, Pool, PoolError, PoolMode, PoolOptions, ProducerOptions, ReadyError, TakeError, Token,
};
use hostbuf_tests::eventually;
use hostbuf_tests::fake_cuda::{PENDING, with_fake_cuda};
use nix::sys::eventfd::EventFd;

/// The variable with the operands of the other side.
const OPERANDS: &str = "HOSTBUF_TEST_GPU_BLOCKS_OTHER";
const LIMIT: Duration = Duration::from_secs(20);
/// The granularity of the fake GPU's memory in bytes.
const MIB2: u64 = 2 << 20;

/// Runs the test `name` in a process with the driver. Returns true in that process.
fn with_driver(name: &str) -> bool {
    with_fake_cuda(&format!("gpu_blocks::{name}"))
}

/// The file while which exists no event is complete.
struct PendingEvents(String);

impl PendingEvents {
    fn new() -> PendingEvents {
        let path = std::env::var(PENDING).expect("the first process sets it");
        fs::write(&path, "").expect("the folder is writable");
        PendingEvents(path)
    }
}

impl Drop for PendingEvents {
    fn drop(&mut self) {
        fs::remove_file(&self.0).expect("it is there");
    }
}

/// A broker in a thread. It ends with the test.
struct GpuPoolBroker {
    name: String,
    stop: Arc<EventFd>,
    thread: Option<JoinHandle<()>>,
}

impl GpuPoolBroker {
    fn start(options: BrokerOptions) -> GpuPoolBroker {
        GpuPoolBroker::start_at(format!("hostbuf-pool-gpu-{}", std::process::id()), options)
    }

    fn start_at(name: String, options: BrokerOptions) -> GpuPoolBroker {
        let mut broker = Broker::open(&options.name(&name)).expect("the name is free");
        let stop = Arc::new(EventFd::new().expect("an event descriptor"));
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || broker.serve(stopped.as_fd()).expect("it serves"));
        GpuPoolBroker { name, stop, thread: Some(thread) }
    }

    fn connect(&self, client: &str) -> Pool {
        connect(&self.name, client)
    }
}

impl Drop for GpuPoolBroker {
    fn drop(&mut self) {
        self.stop.write(1).expect("it is open");
        self.thread.take().expect("it runs").join().expect("it has not panicked");
    }
}

fn connect(socket: &str, client: &str) -> Pool {
    Pool::connect(PoolOptions::new(client).mode(PoolMode::Required).socket(socket)).expect("a broker listens")
}

/// The other side of a test, which answers each line with one.
struct OtherProcess {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl OtherProcess {
    fn start(test: &str, operands: &str, change: impl Fn(&mut Command)) -> OtherProcess {
        let mut command = Command::new(std::env::current_exe().expect("this"));
        command.args(["--exact", &format!("gpu_blocks::{test}"), "--nocapture"]).env(OPERANDS, operands);
        change(command.stdin(Stdio::piped()).stdout(Stdio::piped()));
        let mut child = command.spawn().expect("it starts");
        let (input, output) = (child.stdin.take().expect("piped"), child.stdout.take().expect("piped"));
        OtherProcess { child, input, output: BufReader::new(output) }
    }

    /// Waits for a line that begins with `> `, and returns the rest of it.
    fn line(&mut self) -> String {
        loop {
            let mut line = String::new();
            assert!(self.output.read_line(&mut line).expect("it is text") > 0, "the other process has ended");
            // The harness may print something before it.
            if let Some((_, answer)) = line.split_once("> ") {
                return answer.trim_end().to_owned();
            }
        }
    }

    fn kill(mut self) {
        self.child.kill().expect("it runs");
        self.child.wait().expect("it ends");
    }

    /// Ends the standard input of the process, and waits for its end.
    fn finish(self) {
        let OtherProcess { mut child, input, output } = self;
        drop(input);
        let status = child.wait().expect("it ends");
        drop(output);
        assert!(status.success(), "{status}");
    }
}

/// Answers the first process.
fn answer(text: &str) {
    println!("> {text}");
    std::io::stdout().flush().expect("the first process reads");
}

/// Waits for the end of standard input.
fn wait_for_end() {
    std::io::stdin().lines().for_each(drop);
}

fn hex(token: &Token) -> String {
    token.to_bytes().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn token(hex: &str) -> Token {
    let byte = |at: usize| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).expect("digits");
    Token::from_bytes(&(0..hex.len() / 2).map(byte).collect::<Vec<u8>>()).expect("a token")
}

fn context() -> CudaContext {
    let gpu = Driver::find().and_then(|driver| driver.gpu(0)).expect("the fake GPU");
    CudaContext::retain(&gpu).expect("a context")
}

fn layout(length: u64) -> ArrayLayout {
    ArrayLayout::contiguous(ElementType::UInt8, &[length]).expect("a layout")
}

/// Publishes a block full of `stamp` behind the work of a stream.
fn publish(producer: &GpuProducer, stamp: u8) -> Token {
    let block = producer.take_timeout(LIMIT).expect("a free block");
    // SAFETY: the fake GPU's memory is mapped here, and no reader has the block.
    unsafe { (block.address() as *mut u8).write_bytes(stamp, block.len()) };
    let stream = CudaStream::new(producer.context()).expect("a stream");
    let length = block.len() as u64;
    block.publish_after(layout(length), &stream).expect("it fits")
}

fn is_full_of(block: &GpuBlockRef, stamp: u8) -> bool {
    // SAFETY: the fake GPU's memory is mapped here while the block is held.
    let content = unsafe { std::slice::from_raw_parts(block.address() as *const u8, block.len()) };
    content.iter().all(|byte| *byte == stamp)
}

fn status(pool: &Pool) -> serde_json::Value {
    serde_json::from_str(&pool.status().expect("the broker answers")).expect("it is JSON")
}

#[test]
fn another_process_reads_what_the_gpu_has_written() {
    const NAME: &str = "another_process_reads_what_the_gpu_has_written";
    if let Ok(operands) = std::env::var(OPERANDS) {
        let (socket, hex) = operands.split_once(' ').expect("two words");
        let pool = connect(socket, "viewer");
        assert!(
            matches!(pool.acquire(&token(hex)), Err(AcquireError::OnGpu { gpu }) if gpu.starts_with("GPU-10"))
        );
        let block = pool.acquire_gpu(&token(hex)).expect("it is published");
        assert_eq!((block.dma(), block.why_writable()), (DmaPath::Direct(block.address()), None));
        let stream = CudaStream::new(block.context()).expect("a stream");
        block.wait_ready(&stream).expect("the producer lives");
        assert!(block.is_ready().expect("the producer lives") && is_full_of(&block, 7));
        let copy = block.clone();
        drop(block);
        assert_eq!(status(&pool)["segments"][0]["readers"][0]["holds"], 1);
        copy.release_after(CudaEvent::after(&stream).expect("recorded"));
        return answer("read");
    }
    if !with_driver(NAME) {
        return;
    }
    let broker = GpuPoolBroker::start(BrokerOptions::new());
    let pool = broker.connect("camera");
    let producer =
        pool.gpu_producer(&ProducerOptions::new(1 << 20, 3), &context()).expect("within the limit");
    let token = publish(&producer, 7);
    let mut viewer = OtherProcess::start(NAME, &format!("{} {}", broker.name, hex(&token)), |_| {});
    assert_eq!(viewer.line(), "read");
    viewer.finish();
    let found = status(&pool);
    // Three blocks of 1 MiB need two units of memory.
    assert_eq!(
        (&found["gpu_bytes"], &found["segments"][0]["gpu_bytes"]),
        (&(2 * MIB2).into(), &(2 * MIB2).into())
    );
    assert_eq!(found["segments"][0]["gpu"], "GPU-10101010-1010-1010-1010-101010101010");
    assert!(found["bytes"].as_u64().expect("a number") < MIB2, "{found}");
    // The process that made the events reads its own blocks, too.
    let own = pool.acquire_gpu(&token).expect("it is published");
    own.wait_ready(&CudaStream::new(own.context()).expect("a stream")).expect("the producer lives");
    assert!(is_full_of(&own, 7));
    let elsewhere = Token { segment: token.segment + 1, ..token };
    assert!(matches!(pool.acquire_gpu(&elsewhere), Err(AcquireError::Gone)));
    let late = Token { generation: token.generation + 9, ..token };
    assert!(matches!(pool.acquire_gpu(&late), Err(AcquireError::NotPublished | AcquireError::Gone)));
    let on_host = pool.producer(&ProducerOptions::new(100, 2)).expect("within the limit");
    let on_host = on_host.take().expect("free").publish(layout(1)).expect("it fits");
    assert!(matches!(pool.acquire_gpu(&on_host), Err(AcquireError::OnHost)));
    drop((own, producer));
}

#[test]
fn a_process_without_the_gpu_gets_an_error_and_holds_nothing() {
    const NAME: &str = "a_process_without_the_gpu_gets_an_error_and_holds_nothing";
    if let Ok(operands) = std::env::var(OPERANDS) {
        let (socket, hex) = operands.split_once(' ').expect("two words");
        let pool = connect(socket, "viewer");
        let error = pool.acquire_gpu(&token(hex)).expect_err("it has no such GPU");
        let AcquireError::Gpu(reason) = &error else { panic!("{error}") };
        let reason = reason.downcast_ref::<CudaError>().expect("the driver's");
        assert!(matches!(reason, CudaError::NoGpu { .. } | CudaError::NoDriver { .. }), "{error}");
        assert_eq!(status(&pool)["segments"][0]["readers"][0]["holds"], 0);
        return answer("refused");
    }
    if !with_driver(NAME) {
        return;
    }
    let broker = GpuPoolBroker::start(BrokerOptions::new());
    let pool = broker.connect("camera");
    let producer = pool.gpu_producer(&ProducerOptions::new(4096, 2), &context()).expect("within the limit");
    let operands = format!("{} {}", broker.name, hex(&publish(&producer, 1)));
    let changes: [fn(&mut Command); 2] = [
        |command| _ = command.env("FAKE_CUDA_UUID", "99"),
        |command| _ = command.env_remove("LD_LIBRARY_PATH"),
    ];
    for change in changes {
        let mut viewer = OtherProcess::start(NAME, &operands, change);
        assert_eq!(viewer.line(), "refused");
        viewer.finish();
    }
    for stamp in 2..9 {
        publish(&producer, stamp);
    }
}

#[test]
fn memory_outlives_its_killed_producer_and_is_freed_with_its_last_reader() {
    const NAME: &str = "memory_outlives_its_killed_producer_and_is_freed_with_its_last_reader";
    if let Ok(socket) = std::env::var(OPERANDS) {
        let pool = connect(&socket, "camera");
        let producer =
            pool.gpu_producer(&ProducerOptions::new(MIB2, 2), &context()).expect("within the limit");
        answer(&hex(&publish(&producer, 5)));
        return wait_for_end();
    }
    if !with_driver(NAME) {
        return;
    }
    let broker = GpuPoolBroker::start(BrokerOptions::new().linger(Duration::from_secs(1)));
    let pool = broker.connect("viewer");
    let mut camera = OtherProcess::start(NAME, &broker.name, |_| {});
    let token = token(&camera.line());
    camera.kill();
    let block = pool.acquire_gpu(&token).expect("within the linger time");
    eventually("the broker sees the death", LIMIT, || status(&pool)["segments"][0]["producer"].is_null());
    let stream = CudaStream::new(block.context()).expect("a stream");
    block.wait_ready(&stream).expect("the fake GPU had written it");
    assert!(is_full_of(&block, 5));
    assert_eq!(status(&pool)["gpu_bytes"], 2 * MIB2);
    drop(block);
    eventually("the memory is freed", LIMIT, || status(&pool)["gpu_bytes"] == 0);
    assert_eq!(status(&pool)["bytes"], 0);
}

#[test]
fn nobody_waits_for_the_event_of_a_producer_that_has_ended() {
    const NAME: &str = "nobody_waits_for_the_event_of_a_producer_that_has_ended";
    if let Ok(socket) = std::env::var(OPERANDS) {
        let pool = connect(&socket, "camera");
        let producer =
            pool.gpu_producer(&ProducerOptions::new(4096, 2), &context()).expect("within the limit");
        answer(&hex(&publish(&producer, 5)));
        return wait_for_end();
    }
    if !with_driver(NAME) {
        return;
    }
    let broker = GpuPoolBroker::start(BrokerOptions::new());
    let pool = broker.connect("viewer");
    let pending = PendingEvents::new();
    let mut camera = OtherProcess::start(NAME, &broker.name, |_| {});
    let block = pool.acquire_gpu(&token(&camera.line())).expect("it is published at once");
    let stream = CudaStream::new(block.context()).expect("a stream");
    assert_eq!(block.is_ready(), Ok(false));
    block.wait_ready(&stream).expect("the producer lives");
    camera.kill();
    eventually("the broker sees the death", LIMIT, || status(&pool)["segments"][0]["producer"].is_null());
    assert_eq!(block.wait_ready(&stream), Err(ReadyError::ProducerEnded { driver: None }));
    assert!(matches!(block.is_ready(), Err(ReadyError::ProducerEnded { .. })));
    drop(pending);
    assert_eq!((block.wait_ready(&stream), block.is_ready()), (Ok(()), Ok(true)));
}

#[test]
fn a_reader_that_dies_with_an_event_pending_keeps_no_block() {
    const NAME: &str = "a_reader_that_dies_with_an_event_pending_keeps_no_block";
    if let Ok(operands) = std::env::var(OPERANDS) {
        let (socket, hex) = operands.split_once(' ').expect("two words");
        let block = connect(socket, "viewer").acquire_gpu(&token(hex)).expect("it is published");
        let event = CudaEvent::after(&CudaStream::new(block.context()).expect("a stream")).expect("recorded");
        block.release_after(event);
        answer("holds");
        return wait_for_end();
    }
    if !with_driver(NAME) {
        return;
    }
    let broker = GpuPoolBroker::start(BrokerOptions::new());
    let pool = broker.connect("camera");
    let options = ProducerOptions::new(4096, 2).retain(1);
    let producer = pool.gpu_producer(&options, &context()).expect("within the limit");
    let first = publish(&producer, 1);
    let pending = PendingEvents::new();
    let mut viewer = OtherProcess::start(NAME, &format!("{} {}", broker.name, hex(&first)), |_| {});
    assert_eq!(viewer.line(), "holds");
    publish(&producer, 2);
    // The first block is retired, and held until the reader's event is complete.
    assert!(producer.try_take().expect("no fork").is_none());
    viewer.kill();
    drop(pending);
    publish(&producer, 3);
}

#[test]
fn a_block_is_not_taken_while_a_gpu_writes_it() {
    if !with_driver("a_block_is_not_taken_while_a_gpu_writes_it") {
        return;
    }
    let broker = GpuPoolBroker::start(BrokerOptions::new());
    let pool = broker.connect("camera");
    let options = ProducerOptions::new(4096, 2).retain(1);
    let producer = pool.gpu_producer(&options, &context()).expect("within the limit");
    let pending = PendingEvents::new();
    // Nobody reads the first block, which is retired.
    publish(&producer, 1);
    publish(&producer, 2);
    assert!(producer.try_take().expect("no fork").is_none());
    assert!(matches!(producer.take_timeout(Duration::from_millis(5)), Err(TakeError::Timeout { .. })));
    std::thread::scope(|scope| {
        let taker = scope.spawn(|| producer.take().map(drop));
        drop(pending);
        taker.join().expect("no panic").expect("the GPU has written the block");
    });
}

#[test]
fn gpu_memory_has_limits_of_its_own_and_refusals_name_the_holders() {
    if !with_driver("gpu_memory_has_limits_of_its_own_and_refusals_name_the_holders") {
        return;
    }
    let broker = GpuPoolBroker::start(BrokerOptions::new().gpu_limit(5 * MIB2).gpu_per_client(3 * MIB2));
    let (left, right) = (broker.connect("left"), broker.connect("right"));
    let make = |pool: &Pool, blocks| pool.gpu_producer(&ProducerOptions::new(MIB2, blocks), &context());
    let refused = |result: Result<GpuProducer, PoolError>| match result {
        Err(PoolError::Refused(BrokerRefusal::NoSpace { requested, available, details })) => {
            (requested, available, details)
        }
        other => panic!("{other:?}"),
    };
    let held = make(&left, 3).expect("within both limits");
    let (requested, available, details) = refused(make(&left, 2));
    assert_eq!((requested, available), (2 * MIB2, 0));
    assert!(details.contains("--gpu-per-client") && details.contains("6 MiB"), "{details}");
    let (requested, available, details) = refused(make(&right, 3));
    assert_eq!((requested, available), (3 * MIB2, 2 * MIB2));
    assert!(details.contains("--gpu-limit") && details.contains("left (process"), "{details}");
    // Memory of the host is not counted there, and the other way round.
    let on_host = left.producer(&ProducerOptions::new(8 * MIB2, 2)).expect("within the limit of the host");
    let other = make(&right, 2).expect("within both limits");
    assert_eq!(status(&left)["gpu_bytes"], 5 * MIB2);
    drop(held);
    let again = make(&right, 2).map(drop);
    assert!(matches!(again, Err(PoolError::Refused(_))), "the limit for one client: {again:?}");
    make(&left, 3).expect("its memory was freed");
    drop((on_host, other));
}

#[test]
fn a_new_broker_takes_over_gpu_memory() {
    if !with_driver("a_new_broker_takes_over_gpu_memory") {
        return;
    }
    let broker = GpuPoolBroker::start(BrokerOptions::new());
    let (name, camera, viewer) = (broker.name.clone(), broker.connect("camera"), broker.connect("viewer"));
    let producer = camera.gpu_producer(&ProducerOptions::new(4096, 4), &context()).expect("within the limit");
    let first = publish(&producer, 1);
    let block = viewer.acquire_gpu(&first).expect("it is published");
    drop(broker);
    let second = publish(&producer, 2);
    assert!(is_full_of(&viewer.acquire_gpu(&second).expect("no broker is needed"), 2));
    let broker = GpuPoolBroker::start_at(name, BrokerOptions::new().linger(Duration::ZERO));
    let late = broker.connect("late");
    eventually("the producer has handed it back", LIMIT, || status(&late)["segments"][0]["stage"] == "live");
    eventually("the reader too", LIMIT, || {
        status(&late)["segments"][0]["readers"].as_array().is_some_and(|readers| readers.len() == 1)
    });
    assert_eq!(status(&late)["gpu_bytes"], MIB2);
    // The new broker hands the memory to further readers.
    assert!(is_full_of(&late.acquire_gpu(&second).expect("the broker knows it"), 2));
    assert!(is_full_of(&block, 1));
    drop((block, producer));
    eventually("the memory is freed", LIMIT, || status(&late)["gpu_bytes"] == 0);
}
