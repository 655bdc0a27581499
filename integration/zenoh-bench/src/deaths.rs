//! The time after which the blocks of a killed reader are back.

use std::io::Read;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use hostbuf_bench_pool::{BenchBroker, FRAME, FigureBar, Timings, stamp_pages};
use hostbuf_pool::{ArrayLayout, Block, ElementType, ProducerOptions};
use zenoh::pubsub::Publisher;
use zenoh::qos::CongestionControl;
use zenoh::shm::{GarbageCollect, ShmProviderBuilder};
use zenoh::{Session, Wait};

use crate::bench_options::BenchOptions;
use crate::sessions::{self, KEY};

/// The blocks that the reader holds.
const BLOCKS: u32 = 8;
/// The time for which the benchmark waits for the blocks of zenoh's reader.
const LIMIT: Duration = Duration::from_secs(10);

/// A process that holds all frames.
struct HolderProcess {
    child: Child,
    output: ChildStdout,
}

impl HolderProcess {
    /// Starts a process, and waits until it has subscribed.
    fn start(folder: &Path, carrier: &str, publisher: &Publisher) -> Result<HolderProcess, String> {
        let own = std::env::current_exe().map_err(|error| error.to_string())?;
        let mut command = Command::new(own);
        command.arg("holder").arg(folder).arg(carrier).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(|error| error.to_string())?;
        let output = child.stdout.take().ok_or("no pipe")?;
        let holder = HolderProcess { child, output };
        wait_matching(publisher, true)?;
        Ok(holder)
    }

    /// Waits until it holds one frame more.
    fn wait_held(&mut self) -> Result<(), String> {
        self.output.read_exact(&mut [0]).map_err(|error| format!("the reader has ended: {error}"))
    }

    /// Kills it by SIGKILL.
    fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for HolderProcess {
    fn drop(&mut self) {
        self.kill();
    }
}

fn wait_matching(publisher: &Publisher, is_matching: bool) -> Result<(), String> {
    let begun = Instant::now();
    while publisher.matching_status().wait().is_ok_and(|status| status.matching()) != is_matching {
        if begun.elapsed() > LIMIT {
            return Err("the reader does not subscribe, or has not ended".into());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// Kills readers that hold all blocks. Returns whether the bars are met.
pub(crate) fn measure(options: &BenchOptions) -> Result<bool, String> {
    let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
    let broker = BenchBroker::start(Some(&sessions::broker_path(folder.path())))?;
    let session = sessions::tuned("listen", folder.path(), None)?;
    println!("readers that hold {BLOCKS} frames of {FRAME} bytes, killed by SIGKILL:");
    let kills = if options.quick { 5 } else { 50 };
    let times = of_pool(folder.path(), &broker, &session, kills)?;
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    println!("  pool: back after {:.2} ms (median), {kills} readers", ms(times.median()));
    let mut all_met =
        FigureBar::AtMost(100.0).print("  pool, the longest time, in ms", ms(times.quantile(1.0)));
    let limit = if options.quick { Duration::from_secs(2) } else { LIMIT };
    match of_zenoh(folder.path(), &session, limit)? {
        None => println!("  zenoh-shm: not back after {} s, with GarbageCollect", limit.as_secs()),
        Some(time) => {
            println!(
                "  zenoh-shm: back after {:.2} ms, MISSED: the documentation says never, and has to change",
                ms(time)
            );
            all_met = false;
        }
    }
    Ok(all_met)
}

fn publisher(session: &Session) -> Result<Publisher<'static>, String> {
    let publisher = session.declare_publisher(KEY).congestion_control(CongestionControl::Block);
    publisher.express(true).wait().map_err(|error| error.to_string())
}

/// Returns the times after which all blocks of a pool could be taken again.
fn of_pool(folder: &Path, broker: &BenchBroker, session: &Session, kills: u32) -> Result<Timings, String> {
    let publisher = publisher(session)?;
    let pool = broker.connect("bench camera")?;
    // The block published last is kept for late readers.
    let options = ProducerOptions::new(FRAME as u64, BLOCKS + 1).retain(1).quota(BLOCKS + 1);
    let producer = pool.producer(&options).map_err(|error| error.to_string())?;
    let layout = ArrayLayout::contiguous(ElementType::UInt8, &[1080, 1920, 4]).expect("a layout");
    let mut times = Timings::default();
    for _ in 0..kills {
        let mut holder = HolderProcess::start(folder, "pool", &publisher)?;
        let mut held = 0u64;
        while let Some(mut block) = producer.try_take().map_err(|error| error.to_string())? {
            held += 1;
            stamp_pages(&mut block.as_mut_slice()[..FRAME], held);
            let token = block.publish(layout).map_err(|error| error.to_string())?;
            publisher.put(token.to_bytes().to_vec()).wait().map_err(|error| error.to_string())?;
            holder.wait_held()?;
        }
        if held < u64::from(BLOCKS) {
            return Err(format!("the reader holds {held} blocks only"));
        }
        let begun = Instant::now();
        holder.kill();
        let take = |_| producer.take_timeout(LIMIT).map_err(|error| error.to_string());
        let blocks = (0..BLOCKS).map(take).collect::<Result<Vec<Block>, _>>()?;
        times.add(begun.elapsed());
        drop(blocks);
        wait_matching(&publisher, false)?;
    }
    Ok(times)
}

/// Returns the time after which a frame of zenoh's could be allocated again, if it could at all.
fn of_zenoh(folder: &Path, session: &Session, limit: Duration) -> Result<Option<Duration>, String> {
    let publisher = publisher(session)?;
    // As many frames as the pool has blocks.
    let bytes = (FRAME + 4096) * BLOCKS as usize;
    let provider = ShmProviderBuilder::default_backend(bytes).wait().map_err(|error| error.to_string())?;
    let allocate = || provider.alloc(FRAME).with_policy::<GarbageCollect>().wait().ok();
    let mut holder = HolderProcess::start(folder, "zenoh", &publisher)?;
    let mut held = 0u64;
    while let Some(mut frame) = allocate() {
        held += 1;
        stamp_pages(&mut frame, held);
        publisher.put(frame).wait().map_err(|error| error.to_string())?;
        holder.wait_held()?;
    }
    if held < u64::from(BLOCKS) - 1 {
        return Err(format!("zenoh's reader holds {held} frames only"));
    }
    let begun = Instant::now();
    holder.kill();
    while begun.elapsed() < limit {
        if allocate().is_some() {
            return Ok(Some(begun.elapsed()));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(None)
}
