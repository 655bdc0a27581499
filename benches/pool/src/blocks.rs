//! The cost of a block, without a device.

use std::hint::black_box;
use std::time::{Duration, Instant};

use hostbuf_bench_pool::Timings;
use hostbuf_pool::{ArrayLayout, ElementType, Pool, PoolMode, PoolOptions, ProducerOptions};

/// Measures taking, publishing, acquiring and releasing a block of a segment with rows for 8
/// readers. Returns whether the bar is met.
pub(crate) fn measure() -> Result<bool, String> {
    const ROUNDS: u32 = 1000;
    const BLOCKS: u32 = 1000;
    const BAR: Duration = Duration::from_micros(2);
    let pool = Pool::connect(PoolOptions::new("bench").mode(PoolMode::Private));
    let pool = pool.map_err(|error| error.to_string())?;
    let options = ProducerOptions::new(4096, 8).readers(8);
    let producer = pool.producer(&options).map_err(|error| error.to_string())?;
    let layout = ArrayLayout::contiguous(ElementType::UInt8, &[4096]).expect("a layout");
    let mut times = Timings::default();
    for _ in 0..ROUNDS {
        let begun = Instant::now();
        for _ in 0..BLOCKS {
            let block = producer.try_take().map_err(|error| error.to_string())?.ok_or("no free block")?;
            let token = block.publish(layout).map_err(|error| error.to_string())?;
            black_box(pool.acquire(&token).map_err(|error| error.to_string())?);
        }
        times.add(begun.elapsed() / BLOCKS);
    }
    let median = times.median();
    let word = if median <= BAR { "met" } else { "MISSED" };
    println!("take + publish + acquire + release, 8 reader rows: {median:?}  <= {BAR:?} {word}");
    Ok(median <= BAR)
}
