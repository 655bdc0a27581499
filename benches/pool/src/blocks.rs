//! The cost of a block, without a device.

use std::fmt::Write;
use std::hint::black_box;
use std::time::{Duration, Instant};

use hostbuf_bench_pool::{BenchBroker, FigureBar, Timings};
use hostbuf_pool::{
    ArrayLayout, BlockRef, ElementType, Pool, PoolMode, PoolOptions, Producer, ProducerOptions, Token,
};

use crate::bench_process::{BenchProcess, answer, next_command};
use crate::system_calls;

/// The processes that read, each with a row in the segment.
const READERS: u32 = 8;
/// The readers that hold a block during the measurement.
const HOLDERS: usize = 4;
const ROUNDS: u32 = 1000;
/// The blocks that a process takes, or acquires, in a round.
const BATCH: u32 = 16;
/// The blocks of the segment: those of a round, those that a reader may still acquire, and those
/// that are held.
const BLOCKS: u32 = 2 * BATCH + HOLDERS as u32;
/// The published blocks that readers may still acquire.
const RETAIN: u32 = BATCH;

/// Measures taking and publishing blocks in one process, and acquiring and releasing them in
/// another one, while 7 further processes have rows in the segment. Returns whether the bars are
/// met.
pub(crate) fn measure() -> Result<bool, String> {
    let broker = BenchBroker::start(None)?;
    let mut producer = BenchProcess::start("blocks", &["producer", broker.name()])?;
    let readers = (0..READERS).map(|_| BenchProcess::start("blocks", &["reader", broker.name()]));
    let mut readers = readers.collect::<Result<Vec<BenchProcess>, String>>()?;
    // A reader attaches the segment with its first block.
    let first = producer.ask(&format!("publish {READERS}"))?;
    for ((number, reader), token) in readers.iter_mut().enumerate().zip(first.split(' ').skip(1)) {
        let command = if (1..=HOLDERS).contains(&number) { "hold" } else { "read" };
        reader.ask(&format!("{command} {token}"))?;
    }
    let mut times = [Timings::default(), Timings::default(), Timings::default()];
    for _ in 0..ROUNDS {
        let published = producer.ask(&format!("publish {BATCH}"))?;
        let (taking, tokens) = published.split_once(' ').ok_or("no tokens")?;
        let reading = readers[0].ask(&format!("read {tokens}"))?;
        let [taking, reading] = [taking, reading.as_str()].map(|time| {
            let nanoseconds = time.parse().map_err(|error| format!("\"{time}\": {error}"))?;
            Ok::<Duration, String>(Duration::from_nanos(nanoseconds) / BATCH)
        });
        let (taking, reading) = (taking?, reading?);
        for (times, time) in times.iter_mut().zip([taking, reading, taking + reading]) {
            times.add(time);
        }
    }
    let us = |times: &Timings| times.median().as_secs_f64() * 1e6;
    println!(
        "{READERS} reader processes, of which {HOLDERS} hold a block; us, medians of {ROUNDS} rounds of {BATCH} blocks"
    );
    println!("take + publish, in the producer {:33.3}", us(&times[0]));
    println!("acquire + release, in a reader {:34.3}", us(&times[1]));
    let met = FigureBar::AtMost(2.0).print("take + publish + acquire + release", us(&times[2]));
    let calls = count_calls(&mut producer, &mut readers[0])?;
    Ok(FigureBar::AtMost(0.0).print(&format!("system calls of {BATCH} blocks"), calls as f64) & met)
}

/// Returns the number of system calls of both processes in a round.
fn count_calls(producer: &mut BenchProcess, reader: &mut BenchProcess) -> Result<u64, String> {
    producer.send(&format!("count publish {BATCH}"))?;
    let taking = system_calls::count(producer.id())?;
    let published = producer.line()?;
    let (_, tokens) = published.split_once(' ').ok_or("no tokens")?;
    reader.send(&format!("count read {tokens}"))?;
    let reading = system_calls::count(reader.id())?;
    reader.line()?;
    Ok(taking + reading)
}

/// Plays a role: `producer SOCKET` or `reader SOCKET`.
pub(crate) fn play(arguments: &[&str]) -> Result<bool, String> {
    let [role @ ("producer" | "reader"), socket] = arguments else {
        return Err(format!("no role {arguments:?}"));
    };
    let pool = PoolOptions::new(*role).mode(PoolMode::Required).socket(*socket);
    let pool = Pool::connect(pool).map_err(|error| error.to_string())?;
    match *role {
        "producer" => publish_as_told(&pool)?,
        _ => read_as_told(&pool)?,
    }
    Ok(true)
}

/// Publishes the number of blocks of each command, and answers with the time in nanoseconds and the
/// tokens.
fn publish_as_told(pool: &Pool) -> Result<(), String> {
    let options = ProducerOptions::new(4096, BLOCKS).readers(READERS).retain(RETAIN);
    let producer = pool.producer(&options).map_err(|error| error.to_string())?;
    let mut tokens = Vec::with_capacity(BATCH as usize);
    while let Some(command) = next_command() {
        let count = command.rsplit(' ').next().and_then(|count| count.parse().ok());
        let count: u32 = count.ok_or_else(|| format!("no command \"{command}\""))?;
        tokens.clear();
        let time = match command.starts_with("count") {
            true => system_calls::run_counted(|| publish(&producer, count, &mut tokens))?,
            false => publish(&producer, count, &mut tokens),
        };
        let mut line = time?.as_nanos().to_string();
        for token in &tokens {
            write!(line, " {token}").expect("a string has room");
        }
        answer(line)?;
    }
    Ok(())
}

/// Publishes blocks, and returns the time.
fn publish(producer: &Producer, count: u32, tokens: &mut Vec<Token>) -> Result<Duration, String> {
    let layout = ArrayLayout::contiguous(ElementType::UInt8, &[4096]).expect("a layout");
    let begun = Instant::now();
    for _ in 0..count {
        let block = producer.try_take().map_err(|error| error.to_string())?.ok_or("no free block")?;
        tokens.push(block.publish(layout).map_err(|error| error.to_string())?);
    }
    Ok(begun.elapsed())
}

/// Acquires and releases the blocks of each command, and answers with the time in nanoseconds. A
/// block of the command `hold` is held until the process ends.
fn read_as_told(pool: &Pool) -> Result<(), String> {
    let mut held: Vec<BlockRef> = Vec::new();
    while let Some(command) = next_command() {
        let mut words = command.split(' ').peekable();
        let is_counted = words.next_if_eq(&"count").is_some();
        let verb = words.next();
        let tokens = words.map(str::parse::<Token>).collect::<Result<Vec<Token>, _>>();
        let tokens = tokens.map_err(|error| error.to_string())?;
        if verb == Some("hold") {
            held.push(pool.acquire(&tokens[0]).map_err(|error| error.to_string())?);
            answer("held")?;
            continue;
        }
        let time = match is_counted {
            true => system_calls::run_counted(|| read(pool, &tokens))?,
            false => read(pool, &tokens),
        };
        answer(time?.as_nanos())?;
    }
    Ok(())
}

/// Acquires and releases blocks, and returns the time.
fn read(pool: &Pool, tokens: &[Token]) -> Result<Duration, String> {
    let begun = Instant::now();
    for token in tokens {
        black_box(pool.acquire(token).map_err(|error| error.to_string())?);
    }
    Ok(begun.elapsed())
}
