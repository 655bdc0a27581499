//! Frames from another process to the GPU, at 30 Hz.

use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use hostbuf_bench_pool::{BenchBroker, FRAME, FigureBar, GpuCopies, Timings, monotonic_ns, of_this_thread};
use hostbuf_pool::adopt::{Adopted, process_adopter};
use hostbuf_pool::{DmaPath, Pool};
use hostbuf_register::{Access, Device, DeviceName, Span};

use crate::frame_message::{FrameMessage, SIZE};
use crate::shared_ring::SharedRing;

/// The time between two frames.
const PERIOD: Duration = Duration::from_nanos(1_000_000_000 / 30);
/// The number of frames before the measurement.
const WARM_UP: u32 = 10;
/// The distance of the frames whose bytes on the GPU are checked.
const CHECKED: u32 = 20;

/// The ways in which a frame gets to the GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FrameWay {
    Pageable,
    OwnCopy,
    RegisterEach,
    Adopt,
    Pool,
    OwnMemory,
}

const WAYS: [(FrameWay, &str); 6] = [
    (FrameWay::Pageable, "shared memory, pageable copy"),
    (FrameWay::OwnCopy, "shared memory, copied into own page-locked memory"),
    (FrameWay::RegisterEach, "shared memory, registered for each frame"),
    (FrameWay::Adopt, "shared memory, adopted"),
    (FrameWay::Pool, "pool"),
    (FrameWay::OwnMemory, "cuMemHostAlloc of this process, no producer"),
];

/// The results of one way.
#[derive(Default)]
struct WayTimes {
    arrival: Timings,
    ready: Timings,
    processor: Timings,
}

struct ProducerProcess {
    child: Child,
    input: ChildStdin,
    output: ChildStdout,
}

impl ProducerProcess {
    fn start(socket: &str, ring: &str) -> Result<ProducerProcess, String> {
        let own = std::env::current_exe().map_err(|error| error.to_string())?;
        let mut command = Command::new(own);
        command.args(["producer", socket, ring]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(|error| error.to_string())?;
        match (child.stdin.take(), child.stdout.take()) {
            (Some(input), Some(output)) => Ok(ProducerProcess { child, input, output }),
            _ => Err("no pipes".into()),
        }
    }

    fn next(&mut self, request: u8) -> Result<FrameMessage, String> {
        let mut bytes = [0; SIZE];
        let exchanged = self.input.write_all(&[request]).and_then(|()| self.output.read_exact(&mut bytes));
        exchanged.map_err(|error| format!("the producer has ended: {error}"))?;
        Ok(FrameMessage::decode(&bytes))
    }
}

impl Drop for ProducerProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The consumer of frames.
struct Consumer {
    gpu: GpuCopies,
    ring: SharedRing,
    pool: Pool,
    device: DeviceName,
}

impl Consumer {
    fn consume(&self, way: FrameWay, message: &FrameMessage) -> Result<(), String> {
        let gpu = &self.gpu;
        match way {
            FrameWay::Pageable => self.ring.read(message.stamp, |frame| gpu.copy(frame)),
            FrameWay::OwnCopy => self.ring.read(message.stamp, |frame| gpu.copy_through_own(frame)),
            FrameWay::RegisterEach => self.ring.read(message.stamp, |frame| gpu.register_and_copy(frame)),
            FrameWay::Adopt => gpu.copy_adopted(&self.adopt(self.ring.frame(message.stamp))?),
            FrameWay::Pool => {
                let block = self.pool.acquire_bytes(&message.name).map_err(|error| error.to_string())?;
                match block.dma(&self.device) {
                    DmaPath::Direct(_) => gpu.copy(block.as_slice()),
                    DmaPath::Copy(why) => Err(why.to_string()),
                }
            }
            FrameWay::OwnMemory => gpu.copy_own(),
        }
    }

    fn adopt(&self, frame: *mut [u8]) -> Result<Adopted<Device>, String> {
        let adopter = process_adopter(&self.device).map_err(|error| error.to_string())?;
        let span = Span::new(frame.cast::<u8>() as usize, FRAME).map_err(|error| error.to_string())?;
        adopter.adopt(span, Access::READ).map_err(|error| error.to_string())
    }
}

/// Measures `frames` frames of each way, in turns. Returns whether all bars are met.
pub(crate) fn measure(frames: u32) -> Result<bool, String> {
    let broker = BenchBroker::start(None)?;
    let file = SharedRing::create()?;
    let path = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
    let mut producer = ProducerProcess::start(broker.name(), &path)?;
    let consumer = Consumer {
        gpu: GpuCopies::new()?,
        ring: SharedRing::map(&file)?,
        pool: broker.connect("bench GPU")?,
        device: "cuda".parse().map_err(|error: hostbuf_register::Error| error.to_string())?,
    };
    let mut times: [WayTimes; WAYS.len()] = Default::default();
    let mut next = Instant::now();
    for round in 0..frames + WARM_UP {
        for ((way, text), times) in WAYS.iter().zip(&mut times) {
            let message = producer.next(if *way == FrameWay::Pool { b'p' } else { b'r' })?;
            let (arrived, processor) = (Instant::now(), of_this_thread());
            consumer.consume(*way, &message)?;
            let (arrival, processor) = (arrived.elapsed(), of_this_thread() - processor);
            let ready = Duration::from_nanos(monotonic_ns().saturating_sub(message.ready_ns));
            let is_checked = round % CHECKED == 0 && *way != FrameWay::OwnMemory;
            if is_checked && !consumer.gpu.has(message.stamp)? {
                return Err(format!("{text}: a torn frame"));
            }
            if round >= WARM_UP {
                times.arrival.add(arrival);
                times.ready.add(ready);
                times.processor.add(processor);
            }
        }
        next += PERIOD;
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
    }
    drop(producer);
    Ok(report(frames, &times))
}

fn report(frames: u32, times: &[WayTimes; WAYS.len()]) -> bool {
    println!("{frames} frames of {FRAME} bytes at 30 Hz, each way in turn; times in us");
    println!("{:52} {:>8} {:>8} {:>8} {:>8}", "way", "arrival", "p99", "ready", "CPU");
    let us = |time: Duration| time.as_secs_f64() * 1e6;
    for ((_, text), times) in WAYS.iter().zip(times) {
        println!(
            "{text:52} {:8.0} {:8.0} {:8.0} {:8.0}",
            us(times.arrival.median()),
            us(times.arrival.quantile(0.99)),
            us(times.ready.median()),
            us(times.processor.median())
        );
    }
    let of = |way: FrameWay| {
        let at = WAYS.iter().position(|(known, _)| *known == way).expect("it is listed");
        &times[at]
    };
    let pool = of(FrameWay::Pool);
    let arrival = |way| us(of(way).arrival.median()) / us(pool.arrival.median());
    let ready = |way| us(of(way).ready.median()) / us(pool.ready.median());
    let rows = [
        ("arrival, own copy : pool", arrival(FrameWay::OwnCopy), FigureBar::AtLeast(4.0)),
        ("arrival, pageable : pool", arrival(FrameWay::Pageable), FigureBar::AtLeast(2.5)),
        (
            "arrival, registered for each frame : pool",
            arrival(FrameWay::RegisterEach),
            FigureBar::AtLeast(2.0),
        ),
        ("ready, own copy : pool", ready(FrameWay::OwnCopy), FigureBar::AtLeast(2.5)),
        ("ready, pageable : pool", ready(FrameWay::Pageable), FigureBar::AtLeast(1.8)),
        ("arrival, adopted : pool", arrival(FrameWay::Adopt), FigureBar::AtLeast(0.95)),
        (
            "arrival, p99 : median of the pool",
            us(pool.arrival.quantile(0.99)) / us(pool.arrival.median()),
            FigureBar::AtMost(3.0),
        ),
        (
            "processor time, pool : own copy",
            us(pool.processor.median()) / us(of(FrameWay::OwnCopy).processor.median()),
            FigureBar::AtMost(0.25),
        ),
    ];
    rows.into_iter().fold(true, |all, (text, ratio, bar)| bar.print(text, ratio) & all)
}
