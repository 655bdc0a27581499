//! Several cameras, whose frames two consumers read, with the broker in a process of its own.

use std::os::fd::AsFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::{Duration, Instant};

use hostbuf_bench_pool::{FRAME, FigureBar, fill, is_whole, of_process, stamp_pages};
use hostbuf_pool::{
    AcquireError, ArrayLayout, Broker, BrokerOptions, ElementType, Pool, PoolMode, PoolOptions,
    ProducerOptions, Token,
};
use nix::sys::eventfd::EventFd;

use crate::bench_process::{BenchProcess, next_command};

const CAMERAS: u32 = 8;
const CONSUMERS: u32 = 2;
const RATE: u32 = 30;
/// The blocks of each camera.
const BLOCKS: u32 = 8;
/// The published blocks that readers may still acquire.
const RETAIN: u32 = 5;
/// A token and the number of its frame.
const MESSAGE: usize = Token::SIZE + 8;
/// The time before and after the frames, in which the broker serves attaching and leaving clients.
const SETTLE: Duration = Duration::from_secs(1);

/// Measures the frames of `seconds` seconds. With `is_full`, cameras write and consumers read all
/// bytes, otherwise a stamp in every 4 KiB. Returns whether the bars are met.
pub(crate) fn measure(seconds: u32, is_full: bool) -> Result<bool, String> {
    let name = format!("hostbuf-bench-cameras-{}", std::process::id());
    let mut broker = BenchProcess::start("cameras", &["broker", &name])?;
    broker.line()?;
    let (frames, touched) = (seconds * RATE, if is_full { "bytes" } else { "stamps" });
    let count = frames.to_string();
    let start = |role: &str, number: u32| {
        BenchProcess::start("cameras", &[role, &name, &number.to_string(), &count, touched])
    };
    let consumers = (0..CONSUMERS).map(|number| start("consumer", number));
    let mut consumers = consumers.collect::<Result<Vec<BenchProcess>, String>>()?;
    consumers.iter_mut().try_for_each(|consumer| consumer.line().map(drop))?;
    let cameras = (0..CAMERAS).map(|number| start("camera", number));
    let mut cameras = cameras.collect::<Result<Vec<BenchProcess>, String>>()?;
    cameras.iter_mut().try_for_each(|camera| camera.line().map(drop))?;
    for camera in &mut cameras {
        camera.send("go")?;
    }
    // The first frames attach the consumers.
    std::thread::sleep(SETTLE);
    let pid = broker.id();
    let (used, woken, begun) = (of_process(pid), wake_ups(pid)?, Instant::now());
    std::thread::sleep(Duration::from_secs(u64::from(seconds)).saturating_sub(2 * SETTLE));
    let (used, woken, time) = (of_process(pid) - used, wake_ups(pid)? - woken, begun.elapsed());
    // Each camera prints the frames that it has written, and those in time.
    let written = cameras.iter_mut().map(BenchProcess::number::<u32>).sum::<Result<u32, String>>()?;
    let in_time = cameras.iter_mut().map(BenchProcess::number::<u32>).sum::<Result<u32, String>>()?;
    let read = consumers.iter_mut().map(BenchProcess::number::<u32>).sum::<Result<u32, String>>()?;
    println!(
        "{CAMERAS} cameras at {RATE} Hz, {CONSUMERS} consumers, {seconds} s; {} are written and read",
        if is_full { "all bytes" } else { "stamps in every 4 KiB" }
    );
    let all = CAMERAS * frames;
    println!("frames written: {written} of {all}; read: {read} of {}", all * CONSUMERS);
    let rows = [
        ("frames that were late or not written", all - in_time, 0.0),
        ("frames that a consumer has not got, or torn", (all * CONSUMERS).saturating_sub(read), 0.0),
    ];
    let met = rows
        .into_iter()
        .fold(true, |met, (text, figure, bar)| FigureBar::AtMost(bar).print(text, f64::from(figure)) & met);
    let share = used.as_secs_f64() / time.as_secs_f64() * 100.0;
    let met = FigureBar::AtMost(0.5).print("broker's processor time, in % of a core", share) & met;
    let text = "times that the broker was woken, during all these frames";
    // The broker sleeps until a message or the end of a process wakes it.
    Ok(FigureBar::AtMost(0.0).print(text, woken as f64) & met)
}

/// Returns how often a process has waited and was woken.
fn wake_ups(pid: u32) -> Result<u64, String> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).map_err(|error| error.to_string())?;
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    line.and_then(|number| number.trim().parse().ok()).ok_or_else(|| "/proc has no context switches".into())
}

/// Plays a role: `broker NAME`, or `camera|consumer NAME NUMBER FRAMES bytes|stamps`.
pub(crate) fn play(arguments: &[&str]) -> Result<bool, String> {
    match arguments {
        ["broker", name] => serve(name)?,
        [role @ ("camera" | "consumer"), name, number, frames, touched] => {
            let number = number.parse().map_err(|error| format!("{error}"))?;
            let frames = frames.parse().map_err(|error| format!("{error}"))?;
            let pool = PoolOptions::new(*role).mode(PoolMode::Required).socket(*name);
            let pool = Pool::connect(pool).map_err(|error| error.to_string())?;
            let is_full = *touched == "bytes";
            match *role {
                "camera" => film(&pool, name, number, frames, is_full)?,
                _ => watch(&pool, name, number, frames, is_full)?,
            }
        }
        other => return Err(format!("no role {other:?}")),
    }
    Ok(true)
}

fn serve(name: &str) -> Result<(), String> {
    let options = BrokerOptions::new().name(name);
    let mut broker = Broker::open(&options).map_err(|error| error.to_string())?;
    println!("listening");
    // It serves until it is killed.
    let stop = EventFd::new().map_err(|error| error.to_string())?;
    broker.serve(stop.as_fd()).map_err(|error| error.to_string())
}

fn address(name: &str, consumer: u32) -> Result<SocketAddr, String> {
    SocketAddr::from_abstract_name(format!("{name}-{consumer}")).map_err(|error| error.to_string())
}

/// Writes a frame at each tick, and prints the number of frames, and of those in time.
fn film(pool: &Pool, name: &str, camera: u32, frames: u32, is_full: bool) -> Result<(), String> {
    let options = ProducerOptions::new(FRAME as u64, BLOCKS).retain(RETAIN).quota(BLOCKS);
    let producer = pool.producer(&options.stream(format!("camera {camera}")));
    let producer = producer.map_err(|error| error.to_string())?;
    let layout = ArrayLayout::contiguous(ElementType::UInt8, &[1080, 1920, 4]).expect("a layout");
    let socket = UnixDatagram::unbound().map_err(|error| error.to_string())?;
    let consumers = (0..CONSUMERS).map(|consumer| address(name, consumer));
    let consumers = consumers.collect::<Result<Vec<SocketAddr>, String>>()?;
    println!("ready");
    next_command().ok_or("the benchmark has ended")?;
    let period = Duration::from_secs(1) / RATE;
    // The cameras of a host do not tick at the same time.
    let begun = Instant::now() + period * camera / CAMERAS;
    let (mut written, mut in_time) = (0, 0);
    for number in 0..frames {
        std::thread::sleep((begun + period * number).saturating_duration_since(Instant::now()));
        let stamp = u64::from(camera) << 32 | u64::from(number);
        let Some(mut block) = producer.try_take().map_err(|error| error.to_string())? else { continue };
        let write = if is_full { fill } else { stamp_pages };
        write(&mut block.as_mut_slice()[..FRAME], stamp);
        let token = block.publish(layout).map_err(|error| error.to_string())?;
        let mut message = [0; MESSAGE];
        message[..Token::SIZE].copy_from_slice(&token.to_bytes());
        message[Token::SIZE..].copy_from_slice(&stamp.to_ne_bytes());
        for consumer in &consumers {
            socket.send_to_addr(&message, consumer).map_err(|error| error.to_string())?;
        }
        written += 1;
        // A frame that is later than the next tick is not in time.
        in_time += u32::from(Instant::now() < begun + period * (number + 1));
    }
    println!("{written}\n{in_time}");
    // Its blocks stay readable until the benchmark ends it.
    let _ = next_command();
    Ok(())
}

/// Reads the frames of all cameras, and prints the number of whole ones.
fn watch(pool: &Pool, name: &str, consumer: u32, frames: u32, is_full: bool) -> Result<(), String> {
    let socket = UnixDatagram::bind_addr(&address(name, consumer)?).map_err(|error| error.to_string())?;
    socket.set_read_timeout(Some(5 * SETTLE)).map_err(|error| error.to_string())?;
    println!("ready");
    let (mut whole, mut message) = (0u32, [0; MESSAGE]);
    for _ in 0..CAMERAS * frames {
        if socket.recv(&mut message).is_err() {
            break;
        }
        let stamp = u64::from_ne_bytes(message[Token::SIZE..].try_into().expect("8 bytes"));
        match pool.acquire_bytes(&message[..Token::SIZE]) {
            Ok(block) => {
                if is_full {
                    let sum = |sum: u64, byte: &u8| sum.wrapping_add(u64::from(*byte));
                    std::hint::black_box(block.as_slice().iter().fold(0, sum));
                }
                whole += u32::from(is_whole(block.as_slice(), stamp));
            }
            Err(AcquireError::Gone) => {}
            Err(error) => return Err(error.to_string()),
        }
    }
    println!("{whole}");
    Ok(())
}
