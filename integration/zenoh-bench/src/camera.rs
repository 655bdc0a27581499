//! The process that writes frames.

use std::io::{Read, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use hostbuf_bench_pool::{FRAME, fill, monotonic_ns, stamp_pages};
use hostbuf_pool::{ArrayLayout, ElementType, Pool, Producer, ProducerOptions};
use hostbuf_zenoh::PoolProvider;
use zenoh::bytes::ZBytes;
use zenoh::pubsub::Publisher;
use zenoh::qos::CongestionControl;
use zenoh::shm::{AllocAlignment, GarbageCollect, PosixShmProviderBackend, ShmProvider, ShmProviderBuilder};
use zenoh::{Session, Wait};

use crate::frame_carrier::{FrameCarrier, Touched};
use crate::sessions::{self, KEY};

/// The bytes of zenoh's shared memory.
const POOL_BYTES: usize = 128 << 20;
/// The blocks of the pool.
const BLOCKS: u32 = 15;
/// The time for which a frame waits for memory.
const LIMIT: Duration = Duration::from_secs(5);

/// The providers of zenoh's shared memory.
struct SharedFrames {
    own: ShmProvider<PosixShmProviderBackend>,
    of_pool: PoolProvider,
}

impl SharedFrames {
    fn new(pool: &Pool) -> Result<SharedFrames, String> {
        // The frames begin at pages, as they do in a pool.
        let pages = AllocAlignment::new(12).map_err(|error| format!("{error:?}"))?;
        let own = ShmProviderBuilder::default_backend((POOL_BYTES, pages)).wait();
        let of_pool = PoolProvider::new(pool, &blocks("zenoh"));
        Ok(SharedFrames {
            own: own.map_err(|error| error.to_string())?,
            of_pool: of_pool.map_err(|error| error.to_string())?,
        })
    }
}

fn blocks(stream: &str) -> ProducerOptions {
    ProducerOptions::new(FRAME as u64, BLOCKS).quota(BLOCKS).stream(stream)
}

/// Everything that a frame may be written into.
struct Camera {
    producer: Producer,
    shared: Option<SharedFrames>,
    own: Vec<u8>,
    tuned: Publisher<'static>,
    defaults: Option<Publisher<'static>>,
}

/// Publishes a frame for each request on its input, until its end. Then it writes `y` if the driver
/// of CUDA is loaded, `n` if not. `kind` is `tuned`, `defaults` (a session with zenoh's defaults
/// besides) or `contained` (no shared memory of zenoh, which panics if it cannot lock its own).
pub(crate) fn run(folder: &Path, kind: &str) -> Result<bool, String> {
    let is_contained = kind == "contained";
    if !is_contained {
        sessions::raise_locked_memory();
    }
    let pool = sessions::connect(folder, "camera")?;
    let session = match is_contained {
        true => sessions::without_shared_memory("connect", folder)?,
        false => sessions::tuned("connect", folder, None)?,
    };
    let defaults = (kind == "defaults").then(|| sessions::with_defaults("connect", folder)).transpose()?;
    let mut camera = Camera {
        producer: pool.producer(&blocks("tokens")).map_err(|error| error.to_string())?,
        shared: (!is_contained).then(|| SharedFrames::new(&pool)).transpose()?,
        own: vec![0; FRAME],
        tuned: publisher(&session, true)?,
        defaults: defaults.as_ref().map(|session| publisher(session, false)).transpose()?,
    };
    let (mut input, mut output) = (std::io::stdin(), std::io::stdout());
    let mut say = |byte: u8| output.write_all(&[byte]).and_then(|()| output.flush());
    say(b'r').map_err(|error| error.to_string())?;
    let mut request = [0; 2];
    let mut stamp = 0;
    while input.read_exact(&mut request).is_ok() {
        stamp += 1;
        let carrier = FrameCarrier::of(request[0]).ok_or("a request without a carrier")?;
        let is_all = request[1] == Touched::Bytes.letter();
        camera.publish(carrier, stamp, if is_all { fill } else { stamp_pages })?;
    }
    say(if is_driver_loaded() { b'y' } else { b'n' }).map_err(|error| error.to_string())?;
    Ok(true)
}

/// Returns whether the driver of CUDA is mapped in this process.
pub(crate) fn is_driver_loaded() -> bool {
    std::fs::read_to_string("/proc/self/maps").is_ok_and(|maps| maps.contains("libcuda"))
}

fn publisher(session: &Session, is_express: bool) -> Result<Publisher<'static>, String> {
    let publisher = session
        .declare_publisher(KEY)
        .congestion_control(CongestionControl::Block)
        .express(is_express)
        .wait()
        .map_err(|error| error.to_string())?;
    let begun = Instant::now();
    while !publisher.matching_status().wait().is_ok_and(|status| status.matching()) {
        if begun.elapsed() > LIMIT {
            return Err("the consumer does not subscribe".into());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(publisher)
}

impl Camera {
    fn publish(
        &mut self,
        carrier: FrameCarrier,
        stamp: u64,
        write: fn(&mut [u8], u64),
    ) -> Result<(), String> {
        let ready;
        let (publisher, payload): (_, ZBytes) = match carrier {
            FrameCarrier::SharedMemory => {
                let own = &self.shared()?.own;
                let mut frame =
                    eventually("zenoh", || own.alloc(FRAME).with_policy::<GarbageCollect>().wait())?;
                write(&mut frame, stamp);
                ready = monotonic_ns();
                (&self.tuned, frame.into())
            }
            FrameCarrier::Provider => {
                let mut frame = eventually("the pool", || {
                    self.shared()?.of_pool.alloc(FRAME).map_err(|e| e.to_string())
                })?;
                write(&mut frame, stamp);
                ready = monotonic_ns();
                (&self.tuned, frame.into())
            }
            FrameCarrier::Token => {
                let mut block = self.producer.take_timeout(LIMIT).map_err(|error| error.to_string())?;
                write(&mut block.as_mut_slice()[..FRAME], stamp);
                ready = monotonic_ns();
                let layout = ArrayLayout::contiguous(ElementType::UInt8, &[1080, 1920, 4]).expect("a layout");
                let token = block.publish(layout).map_err(|error| error.to_string())?;
                (&self.tuned, token.to_bytes().to_vec().into())
            }
            FrameCarrier::Defaults => {
                write(&mut self.own, stamp);
                ready = monotonic_ns();
                let publisher = self.defaults.as_ref().ok_or("there is no session with zenoh's defaults")?;
                (publisher, self.own.clone().into())
            }
            FrameCarrier::Socket => {
                write(&mut self.own, stamp);
                ready = monotonic_ns();
                (&self.tuned, self.own.clone().into())
            }
            FrameCarrier::None => return Ok(()),
        };
        let mut about = [0; 16];
        about[..8].copy_from_slice(&stamp.to_ne_bytes());
        about[8..].copy_from_slice(&ready.to_ne_bytes());
        publisher.put(payload).attachment(about.to_vec()).wait().map_err(|error| error.to_string())
    }

    fn shared(&self) -> Result<&SharedFrames, String> {
        self.shared.as_ref().ok_or_else(|| "this camera has no shared memory of zenoh".into())
    }
}

fn eventually<T, E: std::fmt::Debug>(
    whose: &str,
    mut attempt: impl FnMut() -> Result<T, E>,
) -> Result<T, String> {
    let begun = Instant::now();
    loop {
        match attempt() {
            Ok(value) => return Ok(value),
            Err(why) if begun.elapsed() > LIMIT => {
                return Err(format!(
                    "no memory of {whose} for a frame within {} s: {why:?}",
                    LIMIT.as_secs()
                ));
            }
            Err(_) => std::thread::yield_now(),
        }
    }
}
