//! Blocks on the GPU between processes. Each test starts itself as the other process, which prints
//! its answers in lines that begin with `> `.

mod block_peer;

use std::os::fd::AsFd;
use std::time::Duration;

use cudarc::driver::sys;
use hostbuf_cuda::{
    CudaContext, CudaEvent, CudaStream, DeviceMemory, DeviceSpan, GpuFeature, PageLockedMemory,
};
use hostbuf_pool::{
    ArrayLayout, Broker, BrokerOptions, ElementType, GpuProducer, Pool, PoolMode, PoolOptions,
    ProducerOptions, ReadyError, Token,
};
use nix::sys::eventfd::EventFd;

use super::figures::median;
use super::streams::{HostCopies, first_gpu};
use super::*;
use block_peer::{BlockPeer, OPERANDS, answer, next_line};

/// A frame of 1920 x 1080 pixels of 4 bytes.
const FRAME: u64 = 1920 * 1080 * 4;
const LIMIT: Duration = Duration::from_secs(60);
/// The length of one of the copies that keep a stream busy.
const LONG: usize = 256 * MIB;
/// The number of these copies: some seconds of work, which fit into the queue of a stream.
const LONG_COPIES: usize = 400;

/// Starts a broker in a thread, until the process ends, and returns its name.
fn broker(test: &str) -> String {
    let name = format!("hostbuf-gpu-test-{test}-{}", std::process::id());
    let options =
        BrokerOptions::new().linger(Duration::from_secs(2)).gpu_limit(4 << 30).gpu_per_client(4 << 30);
    let mut broker = Broker::open(&options.name(&name)).expect("the name is free");
    std::thread::spawn(move || {
        let never = EventFd::new().expect("an event descriptor");
        broker.serve(never.as_fd()).expect("it serves");
    });
    name
}

fn connect(socket: &str, client: &str) -> Pool {
    Pool::connect(PoolOptions::new(client).mode(PoolMode::Required).socket(socket)).expect("a broker listens")
}

fn context() -> CudaContext {
    CudaContext::retain(&first_gpu()).expect("a context")
}

fn hex(token: &Token) -> String {
    token.to_bytes().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn token(hex: &str) -> Token {
    let byte = |at: usize| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).expect("digits");
    Token::from_bytes(&(0..hex.len() / 2).map(byte).collect::<Vec<u8>>()).expect("a token")
}

fn layout(length: u64) -> ArrayLayout {
    ArrayLayout::contiguous(ElementType::UInt8, &[length]).expect("a layout")
}

/// Publishes a block behind a copy of the pages of `seed`.
fn publish(producer: &GpuProducer, copies: &mut HostCopies, seed: u8) -> Token {
    let block = producer.take_timeout(LIMIT).expect("a free block");
    copies.start_write(block.address(), seed);
    let length = block.len() as u64;
    block.publish_after(layout(length), &copies.stream).expect("it fits")
}

/// Starts some seconds of copies to `to`, which has room for one of them.
fn keep_busy(stream: &CudaStream, memory: &PageLockedMemory, to: u64) {
    let from = std::ptr::slice_from_raw_parts(memory.as_ptr(), memory.bytes());
    for _ in 0..LONG_COPIES {
        // SAFETY: nothing else uses either range; the process is killed, or waits for the copies.
        unsafe { stream.copy_to_device(from, to) }.expect("a copy");
    }
}

/// Returns the free bytes of the GPU.
fn free_bytes(context: &CudaContext) -> usize {
    let _current = context.make_current().expect("a context");
    let (mut free, mut total) = (0, 0);
    // SAFETY: both are local variables.
    ok(unsafe { sys::cuMemGetInfo_v2(&raw mut free, &raw mut total) });
    free
}

/// Waits until `condition` holds, and returns the time.
fn wait_until(what: &str, mut condition: impl FnMut() -> bool) -> Duration {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < LIMIT, "{what}");
        std::thread::yield_now();
    }
    begun.elapsed()
}

fn gpu_bytes(pool: &Pool) -> u64 {
    let status: serde_json::Value =
        serde_json::from_str(&pool.status().expect("the broker answers")).expect("JSON");
    status["gpu_bytes"].as_u64().expect("a number")
}

fn has_producer(pool: &Pool) -> bool {
    let status: serde_json::Value =
        serde_json::from_str(&pool.status().expect("the broker answers")).expect("JSON");
    !status["segments"][0]["producer"].is_null()
}

/// The times of the frames of one pair of processes, in microseconds, and of the first use, in
/// milliseconds.
struct Handoff {
    produced: f64,
    acquired: f64,
    attached: f64,
    imported: f64,
    /// The access of the reader's mapping.
    mapping: String,
}

/// Passes frames to a new process, and returns the medians.
fn hand_off(name: &str, socket: &str, context: &CudaContext) -> Handoff {
    const FRAMES: u8 = 200;
    let pool = connect(socket, "camera");
    let producer = pool.gpu_producer(&ProducerOptions::new(FRAME, 4), context).expect("within the limit");
    let mut copies = HostCopies::new(context, producer.block_bytes() as usize);
    let mut viewer = BlockPeer::start(name, socket);
    let (mut produced, mut acquired) = (Vec::new(), Vec::new());
    let mut first = String::new();
    for seed in 0..FRAMES {
        let begun = Instant::now();
        let block = producer.take_timeout(LIMIT).expect("a free block");
        let taken = begun.elapsed();
        copies.start_write(block.address(), seed);
        let begun = Instant::now();
        let length = block.len() as u64;
        let token = block.publish_after(layout(length), &copies.stream).expect("it fits");
        let produced_in = taken + begun.elapsed();
        viewer.send(&hex(&token));
        let line = viewer.line();
        let (time, more) = line.split_once(' ').unwrap_or((&line, ""));
        // Each block's event is imported by the first frame in it.
        if seed < 4 {
            first += more;
        } else {
            produced.push(produced_in.as_secs_f64() * 1e6);
            acquired.push(time.parse::<f64>().expect("a number"));
        }
    }
    viewer.finish();
    let words: Vec<&str> = first.split(';').collect();
    let number = |at: usize| words[at].trim().parse::<f64>().expect("a number");
    Handoff {
        produced: median(produced),
        acquired: median(acquired),
        attached: number(0),
        imported: number(1),
        mapping: words[2].to_owned(),
    }
}

#[test]
#[ignore = "needs a GPU"]
fn frames_go_to_another_process_in_microseconds() {
    const NAME: &str = "frames_go_to_another_process_in_microseconds";
    /// The number of pairs of processes: the times depend on the cores on which they run.
    const RUNS: usize = 5;
    if let Ok(socket) = std::env::var(OPERANDS) {
        return read_frames(&socket);
    }
    let context = context();
    assert!(context.gpu().supports(GpuFeature::IpcEvents));
    let socket = broker("frames");
    let runs: Vec<Handoff> = (0..RUNS).map(|_| hand_off(NAME, &socket, &context)).collect();
    println!("\n| GPU block of 8.3 MB to another process, median of {RUNS} runs | time | runs |");
    println!("| --- | --- | --- |");
    let row = |what: &str, unit: &str, of: fn(&Handoff) -> f64| {
        let times: Vec<f64> = runs.iter().map(of).collect();
        let all: Vec<String> = times.iter().map(|time| format!("{time:.3}")).collect();
        let middle = median(times);
        println!("| {what} | {middle:.3} {unit} | {} |", all.join(" "));
        middle
    };
    row("attach, by the broker", "ms", |run| run.attached);
    row("import and map, beyond the context", "ms", |run| run.imported);
    row("take and publish_after", "us", |run| run.produced);
    row("acquire_gpu and wait_ready", "us", |run| run.acquired);
    let first = row("first use", "ms", |run| run.attached + run.imported);
    let handoff = row("handoff", "us", |run| run.produced + run.acquired);
    println!("mapping in the reader: {}", runs[0].mapping);
    assert!(first <= 1.0, "first use: {first} ms");
    assert!(handoff <= 20.0, "handoff: {handoff} us");
}

/// Runs as the reader: checks each frame, and answers with the time of its acquisition.
fn read_frames(socket: &str) {
    let context = context();
    let pool = connect(socket, "viewer");
    let (mut copies, mut seed) = (None, 0);
    while let Some(line) = next_line() {
        let token = token(&line);
        let copies = copies.get_or_insert_with(|| HostCopies::new(&context, token.length as usize));
        let begun = Instant::now();
        if seed == 0 {
            // It attaches the segment, and imports nothing.
            pool.skip(&token).expect("it is published");
        }
        let attached = begun.elapsed().as_secs_f64() * 1e3;
        let begun = Instant::now();
        let block = pool.acquire_gpu(&token).expect("it is published");
        let imported = begun.elapsed().as_secs_f64() * 1e3;
        block.wait_ready(&copies.stream).expect("the producer lives");
        let time = begun.elapsed().as_secs_f64() * 1e6;
        let first = if seed == 0 {
            format!("{attached};{imported};{}", mapping(block.why_writable()))
        } else {
            String::new()
        };
        copies.check(block.address(), seed);
        drop(block);
        answer(&format!("{time} {first}"));
        seed += 1;
    }
}

fn mapping(why_writable: Option<&str>) -> String {
    why_writable
        .map_or_else(|| "read-only".to_owned(), |why| format!("writable, since {}", why.replace(';', ",")))
}

#[test]
#[ignore = "needs a GPU"]
fn copies_from_another_process_are_as_fast_as_local_ones() {
    const NAME: &str = "copies_from_another_process_are_as_fast_as_local_ones";
    const BYTES: usize = 512 * MIB;
    const REPEATS: usize = 20;
    if let Ok(socket) = std::env::var(OPERANDS) {
        let context = context();
        let producer = connect(&socket, "camera")
            .gpu_producer(&ProducerOptions::new(BYTES as u64, 2), &context)
            .expect("within the limit");
        let block = producer.take().expect("free");
        answer(&hex(&block.publish(layout(BYTES as u64)).expect("it fits")));
        while next_line().is_some() {}
        return;
    }
    let socket = broker("copies");
    let mut camera = BlockPeer::start(NAME, &socket);
    let block = connect(&socket, "viewer").acquire_gpu(&token(&camera.line())).expect("it is published");
    let context = block.context().clone();
    let (local, target) = (
        DeviceMemory::new(&context, BYTES).expect("memory"),
        DeviceMemory::new(&context, BYTES).expect("memory"),
    );
    let stream = CudaStream::new(&context).expect("a stream");
    block.wait_ready(&stream).expect("the producer lives");
    let rate = |from: DeviceSpan| {
        let (start, end) = (
            CudaEvent::with_timing(&context).expect("an event"),
            CudaEvent::with_timing(&context).expect("an event"),
        );
        start.record(&stream).expect("recorded");
        for _ in 0..REPEATS {
            // SAFETY: nothing writes to either source, and nothing else uses the target.
            unsafe { stream.copy_on_device(from, target.address()) }.expect("a copy");
        }
        end.record(&stream).expect("recorded");
        end.synchronize().expect("the copies end");
        (REPEATS * BYTES) as f64 / end.elapsed_since(&start).expect("recorded").as_secs_f64() / 1e9
    };
    // In turns; the first round does not count.
    let rounds: Vec<(f64, f64)> = (0..8).map(|_| (rate(block.span()), rate(local.span()))).skip(1).collect();
    let shared = median(rounds.iter().map(|(shared, _)| *shared).collect());
    let own = median(rounds.iter().map(|(_, own)| *own).collect());
    println!("\n| 512 MiB on the GPU from | rate | ratio |");
    println!("| --- | --- | --- |");
    println!("| own cuMemAlloc | {own:.0} GB/s | 1 |");
    println!("| a block of another process | {shared:.0} GB/s | {:.3} |", shared / own);
    assert!(shared / own >= 0.98);
    drop(block);
    camera.finish();
}

#[test]
#[ignore = "needs a GPU"]
fn blocks_outlive_their_killed_producer_and_are_freed_with_the_last_reader() {
    const NAME: &str = "blocks_outlive_their_killed_producer_and_are_freed_with_the_last_reader";
    const BYTES: u64 = 256 << 20;
    if let Ok(socket) = std::env::var(OPERANDS) {
        let context = context();
        let producer = connect(&socket, "camera")
            .gpu_producer(&ProducerOptions::new(BYTES, 2), &context)
            .expect("within the limit");
        let mut copies = HostCopies::new(&context, BYTES as usize);
        let token = publish(&producer, &mut copies, 5);
        copies.stream.synchronize().expect("the copy ends");
        answer(&hex(&token));
        while next_line().is_some() {}
        return;
    }
    let context = context();
    let socket = broker("producer");
    let pool = connect(&socket, "viewer");
    let mut copies = HostCopies::new(&context, BYTES as usize);
    let before = free_bytes(&context);
    let mut camera = BlockPeer::start(NAME, &socket);
    let token = token(&camera.line());
    camera.kill();
    let block = pool.acquire_gpu(&token).expect("within the linger time");
    wait_until("the broker sees the death", || !has_producer(&pool));
    println!("a killed producer whose work was complete: wait_ready {:?}", block.wait_ready(&copies.stream));
    copies.check(block.address(), 5);
    assert!(free_bytes(&context) + BYTES as usize <= before, "the memory still exists");
    drop(block);
    let freed = wait_until("the broker drops the memory", || gpu_bytes(&pool) == 0);
    wait_until("the memory is free", || free_bytes(&context) + 16 * MIB >= before);
    println!("{freed:?} after the last hold (linger time 2 s) the memory was free");
}

#[test]
#[ignore = "needs a GPU"]
fn a_reader_killed_with_an_event_pending_blocks_nobody() {
    const NAME: &str = "a_reader_killed_with_an_event_pending_blocks_nobody";
    if let Ok(socket) = std::env::var(OPERANDS) {
        let pool = connect(&socket, "viewer");
        let block = pool.acquire_gpu(&token(&next_line().expect("a token"))).expect("it is published");
        let (context, memory) = (block.context().clone(), PageLockedMemory::new(block.context(), LONG));
        let (memory, target) = (memory.expect("memory"), DeviceMemory::new(&context, LONG).expect("memory"));
        let stream = CudaStream::new(&context).expect("a stream");
        block.wait_ready(&stream).expect("the producer lives");
        keep_busy(&stream, &memory, target.address());
        let event = CudaEvent::after(&stream).expect("recorded");
        answer(&format!("pending: {}", !event.is_complete().expect("an event")));
        block.release_after(event);
        while next_line().is_some() {}
        return;
    }
    let context = context();
    let socket = broker("reader");
    let options = ProducerOptions::new(FRAME, 2).retain(1);
    let pool = connect(&socket, "camera");
    let producer = pool.gpu_producer(&options, &context).expect("within the limit");
    let mut copies = HostCopies::new(&context, producer.block_bytes() as usize);
    let first = publish(&producer, &mut copies, 1);
    let mut viewer = BlockPeer::start(NAME, &socket);
    viewer.send(&hex(&first));
    println!("the reader's event is {}", viewer.line());
    publish(&producer, &mut copies, 2);
    let begun = Instant::now();
    viewer.kill();
    let ended = begun.elapsed();
    let block = producer.take_timeout(LIMIT).expect("the block is free again");
    println!("SIGKILL to the end of the reader {ended:?}, to a free block {:?}", begun.elapsed());
    drop(block);
    copies.stream.synchronize().expect("the copies end");
    let (before, freed) = (free_bytes(&context), gpu_bytes(&pool) as usize);
    drop(producer);
    wait_until("the broker drops the memory", || gpu_bytes(&pool) == 0);
    wait_until("the memory is free", || free_bytes(&context) + MIB >= before + freed);
}

/// Prints what the driver does with the event of a process that was killed, and checks that
/// `wait_ready` waits for nothing then.
#[test]
#[ignore = "needs a GPU"]
fn a_wait_after_the_death_of_a_producer_with_an_event_pending_ends() {
    const NAME: &str = "a_wait_after_the_death_of_a_producer_with_an_event_pending_ends";
    match std::env::var(OPERANDS) {
        Ok(operands) if operands.starts_with('@') => return produce_for_long(&operands[1..]),
        Ok(socket) => return read_after_death(&socket),
        Err(_) => {}
    }
    let socket = broker("event");
    let mut camera = BlockPeer::start(NAME, &format!("@{socket}"));
    let mut viewer = BlockPeer::start(NAME, &socket);
    let token = camera.line();
    viewer.send(&token);
    println!("before the death: {}", viewer.line());
    camera.kill();
    viewer.send("killed");
    println!("after it: {}", viewer.line());
    println!("a stream that waited before the death: {}", viewer.line());
    // A stream that waits for ever must not keep this test.
    viewer.kill();
    let pool = connect(&socket, "rest");
    wait_until("the memory of both is freed", || gpu_bytes(&pool) == 0);
}

/// Runs as the producer: publishes a block that some seconds of work write.
fn produce_for_long(socket: &str) {
    let context = context();
    let producer = connect(socket, "camera")
        .gpu_producer(&ProducerOptions::new(LONG as u64, 2), &context)
        .expect("within the limit");
    let memory = PageLockedMemory::new(&context, LONG).expect("memory");
    let stream = CudaStream::new(&context).expect("a stream");
    let block = producer.take().expect("free");
    keep_busy(&stream, &memory, block.address());
    answer(&hex(&block.publish_after(layout(LONG as u64), &stream).expect("it fits")));
    while next_line().is_some() {}
}

/// Runs as the reader: a stream waits before the producer's death, and another one is to wait
/// behind it.
fn read_after_death(socket: &str) {
    let pool = connect(socket, "viewer");
    // Made before there is a block: the producer's work lasts some seconds.
    let _context = context();
    let block = pool.acquire_gpu(&token(&next_line().expect("a token"))).expect("it is published");
    let early = CudaStream::new(block.context()).expect("a stream");
    let waited = block.wait_ready(&early);
    assert_eq!((&waited, block.is_ready()), (&Ok(()), Ok(false)), "the producer lives and works");
    answer(&format!("is_ready Ok(false), wait_ready {waited:?}"));
    next_line().expect("the producer is killed");
    wait_until("the broker sees the death", || !has_producer(&pool));
    let late = CudaStream::new(block.context()).expect("a stream");
    let waited = block.wait_ready(&late);
    let ready = block.is_ready();
    match &waited {
        Ok(()) => assert_eq!(ready, Ok(true), "it has waited for work that was not complete"),
        Err(error) => assert!(matches!(error, ReadyError::ProducerEnded { .. }), "{error}"),
    }
    assert!(matches!(ready, Ok(true) | Err(ReadyError::ProducerEnded { .. })), "{ready:?}");
    wait_until("the stream waits for nothing", || late.is_idle() == Ok(true));
    // A reader that asks first, and lets a stream wait only for work that is complete.
    let careful = CudaStream::new(block.context()).expect("a stream");
    if block.is_ready() == Ok(true) {
        block.wait_ready(&careful).expect("the work is complete");
    }
    wait_until("a careful reader goes on", || careful.is_idle() == Ok(true));
    answer(&format!("is_ready {ready:?}, wait_ready {waited:?}"));
    let begun = Instant::now();
    let state = loop {
        match early.is_idle() {
            Ok(true) => break format!("goes on after {:?}", begun.elapsed()),
            Err(error) => break format!("fails: {error}"),
            Ok(false) if begun.elapsed() > Duration::from_secs(10) => {
                break "still waits after 10 s".to_owned();
            }
            Ok(false) => std::thread::yield_now(),
        }
    };
    answer(&state);
    // The first process kills this one, whose streams may wait for ever.
    while next_line().is_some() {}
}
