//! The cost of a segment's first use: attaching it, and registering it with a GPU.

use std::time::Instant;

use hostbuf_bench_pool::{BenchBroker, FigureBar, Timings};
use hostbuf_cuda::Driver;
use hostbuf_pool::{
    ArrayLayout, BlockRef, DmaPath, ElementType, Pool, PoolMode, PoolOptions, Producer, ProducerOptions,
    Token,
};
use hostbuf_register::DeviceName;

use crate::bench_process::{BenchProcess, answer, next_command};

/// The size of the segments: 64 MiB.
const BLOCKS: u32 = 8;
const BLOCK_BYTES: u64 = 8 << 20;
/// The fresh processes that attach a segment, and the fresh segments that are registered.
const ROUNDS: usize = 21;

/// Measures the first use of segments of 64 MiB. Returns whether the bars are met.
pub(crate) fn measure() -> Result<bool, String> {
    let broker = BenchBroker::start(None)?;
    let pool = broker.connect("bench camera")?;
    let met = measure_attaching(&broker, &pool)?;
    match Driver::find().and_then(Driver::gpus) {
        Ok(gpus) if !gpus.is_empty() => Ok(measure_registering(&broker, &pool)? & met),
        Ok(_) => Ok(leave_out("there is no GPU", met)),
        Err(error) => Ok(leave_out(&error.to_string(), met)),
    }
}

fn leave_out(why: &str, met: bool) -> bool {
    println!("left out: the first dma of a segment, since {why}");
    met
}

/// Measures attaching one segment in fresh processes without CUDA.
fn measure_attaching(broker: &BenchBroker, pool: &Pool) -> Result<bool, String> {
    let (_producer, token) = publish(pool, BLOCK_BYTES, BLOCKS)?;
    let mut times = Timings::default();
    for _ in 0..ROUNDS {
        let mut reader = BenchProcess::start("start", &["reader", broker.name()])?;
        reader.line()?;
        let time = reader.ask(&format!("attach {token}"))?;
        times.add(nanoseconds(&time)?);
    }
    println!("a segment of 64 MiB, medians of {ROUNDS} fresh processes and segments, ms");
    Ok(print("attach and acquire, without CUDA", &times, 1.0))
}

/// Measures the first `dma` of fresh segments in two processes, of which the second one registers
/// what the first one has registered.
fn measure_registering(broker: &BenchBroker, pool: &Pool) -> Result<bool, String> {
    let start = || BenchProcess::start("start", &["reader", broker.name()]);
    let mut readers = [start()?, start()?];
    // Another segment makes the context and the registrar.
    let (_producer, token) = publish(pool, 4096, 2)?;
    for reader in &mut readers {
        reader.line()?;
        reader.ask(&format!("attach {token}"))?;
        nanoseconds(&reader.ask("dma")?)?;
    }
    let mut times = [Timings::default(), Timings::default()];
    for _ in 0..ROUNDS {
        let (_producer, token) = publish(pool, BLOCK_BYTES, BLOCKS)?;
        for (reader, times) in readers.iter_mut().zip(&mut times) {
            reader.ask(&format!("attach {token}"))?;
            times.add(nanoseconds(&reader.ask("dma")?)?);
        }
        for reader in &mut readers {
            reader.ask("release")?;
        }
    }
    let [first, second] = times;
    let met = print("first dma, beyond the context", &first, 5.0);
    Ok(print("the same in a second process", &second, 5.0) & met)
}

/// Prints a row in milliseconds. Returns whether the bar is met.
fn print(text: &str, times: &Timings, bar: f64) -> bool {
    FigureBar::AtMost(bar).print(text, times.median().as_secs_f64() * 1e3)
}

/// Makes a segment, and publishes a block of it.
fn publish(pool: &Pool, bytes: u64, blocks: u32) -> Result<(Producer, Token), String> {
    let producer = pool.producer(&ProducerOptions::new(bytes, blocks)).map_err(|error| error.to_string())?;
    let layout = ArrayLayout::contiguous(ElementType::UInt8, &[bytes]).expect("a layout");
    let block = producer.take().map_err(|error| error.to_string())?;
    let token = block.publish(layout).map_err(|error| error.to_string())?;
    Ok((producer, token))
}

/// Returns the time that a role has answered.
fn nanoseconds(answer: &str) -> Result<std::time::Duration, String> {
    answer.parse().map(std::time::Duration::from_nanos).map_err(|_| answer.to_owned())
}

/// Plays the role `reader SOCKET`: `attach TOKEN` and `dma` answer with the time in nanoseconds.
pub(crate) fn play(arguments: &[&str]) -> Result<bool, String> {
    let ["reader", socket] = arguments else { return Err(format!("no role {arguments:?}")) };
    let options = PoolOptions::new("bench reader").mode(PoolMode::Required).socket(*socket);
    let pool = Pool::connect(options).map_err(|error| error.to_string())?;
    let device: DeviceName = "cuda".parse().map_err(|error: hostbuf_register::Error| error.to_string())?;
    answer("connected")?;
    let mut held: Vec<BlockRef> = Vec::new();
    let mut has_dma = false;
    while let Some(command) = next_command() {
        match command.split_once(' ') {
            Some(("attach", token)) => {
                let token: Token = token.parse().map_err(|error| format!("{error}"))?;
                let begun = Instant::now();
                held.push(pool.acquire(&token).map_err(|error| error.to_string())?);
                let time = begun.elapsed();
                if !has_dma && has_driver()? {
                    return Err("a reader that has not asked for dma has loaded libcuda".into());
                }
                answer(time.as_nanos())?;
            }
            None if command == "dma" => {
                has_dma = true;
                let block = held.last().ok_or("no block")?;
                let begun = Instant::now();
                let path = block.dma(&device);
                let time = begun.elapsed();
                match path {
                    DmaPath::Direct(_) => answer(time.as_nanos())?,
                    DmaPath::Copy(why) => answer(why)?,
                }
            }
            None if command == "release" => {
                // The first block keeps the context.
                held.truncate(1);
                answer("released")?;
            }
            _ => return Err(format!("no command \"{command}\"")),
        }
    }
    Ok(true)
}

/// Returns whether this process has loaded the driver of the GPUs.
fn has_driver() -> Result<bool, String> {
    let maps = std::fs::read_to_string("/proc/self/maps").map_err(|error| error.to_string())?;
    Ok(maps.contains("libcuda.so"))
}
