//! The rate of blocks to the GPU.

use std::time::Duration;

use hostbuf_bench_pool::{BenchBroker, FRAME, FigureBar, Timings, fill};
use hostbuf_pool::{
    ArrayLayout, BlockRef, DmaPath, ElementType, Pool, PoolMode, PoolOptions, ProducerOptions, Token,
};
use hostbuf_register::DeviceName;

use crate::bench_process::{BenchProcess, answer, next_command};
use crate::copy_window::{CopyWindow, WINDOW};

/// The rounds of each kind of memory, and the copies of each round.
const ROUNDS: usize = 15;
const COPIES: usize = 200;
/// The stamp of the first frame of the process itself; those of the producer begin at 0.
const OWN_STAMP: u64 = 100;

/// Measures copies of blocks of another process, and of memory of cuMemHostAlloc, in turns, with 4
/// copies in flight. Returns whether the bar is met.
pub(crate) fn measure() -> Result<bool, String> {
    let broker = BenchBroker::start(None)?;
    let mut producer = BenchProcess::start("rate", &["producer", broker.name()])?;
    let tokens = producer.line()?;
    let pool = broker.connect("bench GPU")?;
    let device: DeviceName = "cuda".parse().map_err(|error: hostbuf_register::Error| error.to_string())?;
    let acquire = |token: &str| {
        let token: Token = token.parse().map_err(|error| format!("{error}"))?;
        let block = pool.acquire(&token).map_err(|error| error.to_string())?;
        // The first block registers the segment for reading.
        match block.dma(&device) {
            DmaPath::Direct(_) => Ok(block),
            DmaPath::Copy(why) => Err(why.to_string()),
        }
    };
    let blocks = tokens.split(' ').map(acquire).collect::<Result<Vec<BlockRef>, String>>()?;
    let blocks: [&[u8]; WINDOW] = std::array::from_fn(|at| blocks[at].as_slice());
    let mut gpu = CopyWindow::new()?;
    for (at, stamp) in (0..WINDOW).zip(OWN_STAMP..) {
        fill(gpu.own_mut(at), stamp);
    }
    let (mut of_pool, mut of_own) = (Timings::default(), Timings::default());
    for round in 0..=ROUNDS {
        let run = |frames, times: &mut Timings| {
            let time = gpu.run(frames, COPIES)?;
            if !gpu.has(frames)? {
                return Err("the GPU has other bytes than the memory".to_owned());
            }
            // The first round warms up.
            if round > 0 {
                times.add(time);
            }
            Ok(())
        };
        // Neither kind is always the first one.
        if round % 2 == 0 {
            run(blocks, &mut of_pool)?;
            run(gpu.own(), &mut of_own)?;
        } else {
            run(gpu.own(), &mut of_own)?;
            run(blocks, &mut of_pool)?;
        }
    }
    let rate = |times: &Timings| rate(times.median());
    println!(
        "{COPIES} copies of {FRAME} bytes to the GPU, {WINDOW} in flight; medians of {ROUNDS} rounds in turns"
    );
    println!("blocks of another process {:39.2} GB/s", rate(&of_pool));
    println!("cuMemHostAlloc of this process {:34.2} GB/s", rate(&of_own));
    Ok(FigureBar::AtLeast(0.98).print("rate, pool : cuMemHostAlloc", rate(&of_pool) / rate(&of_own)))
}

/// Returns the rate of a round in GB/s.
fn rate(time: Duration) -> f64 {
    (COPIES * FRAME) as f64 / time.as_secs_f64() / 1e9
}

/// Plays the role `producer SOCKET`: publishes the frames, and prints their tokens in a line.
pub(crate) fn play(arguments: &[&str]) -> Result<bool, String> {
    let ["producer", socket] = arguments else { return Err(format!("no role {arguments:?}")) };
    let options = PoolOptions::new("bench camera").mode(PoolMode::Required).socket(*socket);
    let pool = Pool::connect(options).map_err(|error| error.to_string())?;
    let options = ProducerOptions::new(FRAME as u64, 2 * WINDOW as u32).stream("bench");
    let producer = pool.producer(&options).map_err(|error| error.to_string())?;
    let layout = ArrayLayout::contiguous(ElementType::UInt8, &[1080, 1920, 4]).expect("a layout");
    let mut tokens = Vec::new();
    for stamp in 0..WINDOW as u64 {
        let mut block = producer.take().map_err(|error| error.to_string())?;
        fill(&mut block.as_mut_slice()[..FRAME], stamp);
        tokens.push(block.publish(layout).map_err(|error| error.to_string())?.to_string());
    }
    answer(tokens.join(" "))?;
    // The segment lives as long as this process.
    while next_command().is_some() {}
    Ok(true)
}
