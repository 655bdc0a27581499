//! Frames from another process to the GPU, at 30 Hz.

use std::time::{Duration, Instant};

use hostbuf_bench_pool::{
    BenchBroker, FRAME, FigureBar, GpuCopies, Timings, monotonic_ns, of_process, of_this_thread,
};
use hostbuf_pool::adopt::process_adopter;
use hostbuf_pool::{DmaPath, Pool};
use hostbuf_register::{Access, DeviceName, Span};
use zenoh::Wait;

use crate::bench_options::BenchOptions;
use crate::camera_process::CameraProcess;
use crate::frame_carrier::{FrameCarrier, Touched};
use crate::received_frame::ReceivedFrame;
use crate::sessions::{self, KEY};

/// The time between two frames of a way.
const PERIOD: Duration = Duration::from_nanos(1_000_000_000 / 30);
/// The number of frames before the measurement.
const WARM_UP: u32 = 10;
/// The distance of the frames whose bytes on the GPU are checked.
const CHECKED: u32 = 20;

/// The ways from the consumer's hand to the GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GpuWay {
    Pageable,
    OwnCopy,
    RegisterEach,
    Adopt,
    Pool,
    DefaultsPageable,
    DefaultsOwnCopy,
    OwnMemory,
}

const WAYS: [(GpuWay, FrameCarrier, &str); 8] = [
    (GpuWay::Pageable, FrameCarrier::SharedMemory, "Z0  zenoh-shm, pageable copy"),
    (GpuWay::OwnCopy, FrameCarrier::SharedMemory, "Z1  zenoh-shm, copied into own page-locked memory"),
    (GpuWay::RegisterEach, FrameCarrier::SharedMemory, "Z2  zenoh-shm, registered for each frame"),
    (GpuWay::Adopt, FrameCarrier::SharedMemory, "Z3  zenoh-shm, adopted: registered once"),
    (GpuWay::Pool, FrameCarrier::Token, "    pool, token by zenoh"),
    (GpuWay::DefaultsPageable, FrameCarrier::Defaults, "    zenoh's defaults, pageable copy"),
    (
        GpuWay::DefaultsOwnCopy,
        FrameCarrier::Defaults,
        "    zenoh's defaults, copied into own page-locked memory",
    ),
    (GpuWay::OwnMemory, FrameCarrier::None, "H   cuMemHostAlloc of this process, no camera"),
];

/// The results of one way.
#[derive(Default)]
struct GpuTimes {
    arrival: Timings,
    ready: Timings,
    thread: Timings,
    process: Timings,
}

/// The consumer's GPU and pool.
struct GpuConsumer {
    gpu: GpuCopies,
    pool: Pool,
    device: DeviceName,
}

impl GpuConsumer {
    fn consume(&self, way: GpuWay, frame: &ReceivedFrame) -> Result<(), String> {
        match way {
            GpuWay::Pageable | GpuWay::DefaultsPageable => self.gpu.copy(&frame.bytes()),
            GpuWay::OwnCopy | GpuWay::DefaultsOwnCopy => self.gpu.copy_through_own(&frame.bytes()),
            GpuWay::RegisterEach => self.gpu.register_and_copy(&frame.bytes()),
            GpuWay::Adopt => {
                let bytes = frame.bytes();
                let adopter = process_adopter(&self.device).map_err(|error| error.to_string())?;
                let span =
                    Span::new(bytes.as_ptr() as usize, bytes.len()).map_err(|error| error.to_string())?;
                let adopted = adopter.adopt(span, Access::READ).map_err(|error| error.to_string())?;
                self.gpu.copy_adopted(&adopted)
            }
            GpuWay::Pool => {
                let block = frame.block(&self.pool)?;
                match block.dma(&self.device) {
                    DmaPath::Direct(_) => self.gpu.copy(block.as_slice()),
                    DmaPath::Copy(why) => Err(why.to_string()),
                }
            }
            GpuWay::OwnMemory => self.gpu.copy_own(),
        }
    }
}

/// Measures frames to the GPU, each way in turn. Returns whether all bars are met.
pub(crate) fn measure(options: &BenchOptions) -> Result<bool, String> {
    let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
    let broker = BenchBroker::start(Some(&sessions::broker_path(folder.path())))?;
    let pool = broker.connect("bench GPU")?;
    let tuned = sessions::tuned("listen", folder.path(), Some(&pool))?;
    let defaults = sessions::with_defaults("listen", folder.path())?;
    let by_tuned = tuned.declare_subscriber(KEY).wait().map_err(|error| error.to_string())?;
    let by_defaults = defaults.declare_subscriber(KEY).wait().map_err(|error| error.to_string())?;
    let mut camera = CameraProcess::start(folder.path(), "defaults")?;
    let consumer = GpuConsumer {
        gpu: GpuCopies::new()?,
        pool,
        device: "cuda".parse().map_err(|error: hostbuf_register::Error| error.to_string())?,
    };
    let mut times: [GpuTimes; WAYS.len()] = Default::default();
    let mut shared = [true; WAYS.len()];
    let mut next = Instant::now();
    for round in 0..options.frames + WARM_UP {
        for ((at, (way, carrier, text)), times) in WAYS.iter().enumerate().zip(&mut times) {
            let of_all = of_process(std::process::id());
            let frame = if *carrier == FrameCarrier::None {
                None
            } else {
                camera.request(*carrier, Touched::Bytes)?;
                let subscriber = if *carrier == FrameCarrier::Defaults { &by_defaults } else { &by_tuned };
                Some(ReceivedFrame::wait(subscriber)?)
            };
            let (arrived, of_thread) = (Instant::now(), of_this_thread());
            match &frame {
                Some(frame) => consumer.consume(*way, frame).map_err(|why| format!("{text}: {why}"))?,
                None => consumer.gpu.copy_own()?,
            }
            let (arrival, of_thread) = (arrived.elapsed(), of_this_thread() - of_thread);
            let now = monotonic_ns();
            let of_all = of_process(std::process::id()) - of_all;
            if let Some(frame) = &frame {
                if round % CHECKED == 0 && !consumer.gpu.has(frame.stamp)? {
                    return Err(format!("{text}: a torn frame"));
                }
                shared[at] &= frame.is_shared() || *carrier == FrameCarrier::Token;
            }
            if round >= WARM_UP {
                let ready = frame.map_or(arrival, |frame| Duration::from_nanos(now - frame.ready_ns));
                times.arrival.add(arrival);
                times.ready.add(ready);
                times.thread.add(of_thread);
                times.process.add(of_all);
            }
        }
        next += PERIOD;
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
    }
    drop(camera);
    report(options.frames, &times, &shared)
}

fn us(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

fn report(frames: u32, times: &[GpuTimes; WAYS.len()], shared: &[bool; WAYS.len()]) -> Result<bool, String> {
    println!("{frames} frames of {FRAME} bytes at 30 Hz, each way in turn; times in us, medians but p99");
    println!(
        "locked memory: {}; \"process\" is the processor time of all threads",
        sessions::locked_memory()
    );
    println!("{:56} {:>8} {:>8} {:>8} {:>8} {:>8}", "way", "arrival", "p99", "ready", "CPU", "process");
    for ((_, _, text), (times, is_shared)) in WAYS.iter().zip(times.iter().zip(shared)) {
        println!(
            "{text:56} {:8.0} {:8.0} {:8.0} {:8.0} {:8.0}{}",
            us(times.arrival.median()),
            us(times.arrival.quantile(0.99)),
            us(times.ready.median()),
            us(times.thread.median()),
            us(times.process.median()),
            if *is_shared { "" } else { "  (not always by shared memory)" }
        );
    }
    if !shared[0] {
        return Err(
            "zenoh has not passed shared memory: there is too little in /dev/shm, or of locked memory".into(),
        );
    }
    let of = |way: GpuWay| {
        let at = WAYS.iter().position(|(known, ..)| *known == way).expect("it is listed");
        &times[at]
    };
    let pool = of(GpuWay::Pool);
    let arrival = |way| us(of(way).arrival.median()) / us(pool.arrival.median());
    let ready = |way| us(of(way).ready.median()) / us(pool.ready.median());
    let rows = [
        ("arrival, Z1 : pool", arrival(GpuWay::OwnCopy), FigureBar::AtLeast(4.0)),
        ("arrival, Z0 : pool", arrival(GpuWay::Pageable), FigureBar::AtLeast(2.5)),
        ("arrival, Z2 : pool", arrival(GpuWay::RegisterEach), FigureBar::AtLeast(2.0)),
        ("arrival, Z3 : pool", arrival(GpuWay::Adopt), FigureBar::AtLeast(0.95)),
        ("ready, Z1 : pool", ready(GpuWay::OwnCopy), FigureBar::AtLeast(2.5)),
        ("ready, Z0 : pool", ready(GpuWay::Pageable), FigureBar::AtLeast(1.8)),
        ("ready, zenoh's defaults, own copy : pool", ready(GpuWay::DefaultsOwnCopy), FigureBar::AtLeast(2.5)),
        (
            "ready, zenoh's defaults, pageable : pool",
            ready(GpuWay::DefaultsPageable),
            FigureBar::AtLeast(1.8),
        ),
        (
            "arrival, p99 : median of the pool",
            us(pool.arrival.quantile(0.99)) / us(pool.arrival.median()),
            FigureBar::AtMost(3.0),
        ),
        (
            "processor time, pool : Z1",
            us(pool.thread.median()) / us(of(GpuWay::OwnCopy).thread.median()),
            FigureBar::AtMost(0.25),
        ),
    ];
    Ok(rows.into_iter().fold(true, |all, (text, ratio, bar)| bar.print(text, ratio) & all))
}
