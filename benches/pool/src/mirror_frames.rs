//! Acknowledged frames between two hosts: by mirror, and by plain TCP.

use std::error::Error;
use std::io::{IoSlice, Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use hostbuf_mirror::{MirrorReceiver, MirrorReceiverOptions, MirrorSender, MirrorSenderOptions};
use hostbuf_pool::{ArrayLayout, ElementType, Pool, PoolMode, PoolOptions, Producer, ProducerOptions};

use nix::sys::socket::{MsgFlags, recv};

use hostbuf_bench_pool::Timings;

#[cfg(feature = "rdma")]
use crate::mirror_reads;

/// The bytes of a frame: 1080p RGBA.
const FRAME_BYTES: usize = 8_294_400;
const MIRROR_PORT: u16 = 7411;
const PLAIN_PORT: u16 = 7412;
#[cfg(feature = "rdma")]
const RDMA_PORT: u16 = 7413;
#[cfg(feature = "rdma")]
const READ_PORT: u16 = 7414;
/// The number of blocks that both ways use in turn, on each side.
const BLOCKS: u32 = 8;
const ROUNDS: usize = 9;
const FRAMES_IN_A_ROUND: u32 = 6;
/// The lowest ratio of the rates, mirror to plain TCP.
const BAR: f64 = 0.8;

/// Receives frames at `address` until the other side has ended.
pub(crate) fn serve(address: &str) -> Result<bool, Box<dyn Error>> {
    let address: IpAddr = address.parse()?;
    let pool = Pool::connect(PoolOptions::new("bench").mode(PoolMode::Private))?;
    let options = MirrorReceiverOptions::new().blocks(BLOCKS).block_bytes(FRAME_BYTES as u64);
    let _receiver = MirrorReceiver::listen(&pool, (address, MIRROR_PORT), options.clone())?;
    #[cfg(feature = "rdma")]
    let device = mirror_reads::device()?;
    #[cfg(feature = "rdma")]
    let _by_rdma = MirrorReceiver::listen(&pool, (address, RDMA_PORT), options.rdma(device.clone()))?;
    #[cfg(feature = "rdma")]
    let reads = TcpListener::bind((address, READ_PORT))?;
    let listener = TcpListener::bind((address, PLAIN_PORT))?;
    println!("listening");
    let (mut stream, _) = listener.accept()?;
    stream.set_nodelay(true)?;
    let mut blocks = vec![vec![0u8; FRAME_BYTES]; BLOCKS as usize];
    for next in (0..blocks.len()).cycle() {
        // As the mirror reads: the thread is woken as rarely as the kernel allows.
        match recv(stream.as_raw_fd(), &mut blocks[next], MsgFlags::MSG_WAITALL)? {
            FRAME_BYTES => stream.write_all(&[1])?,
            0 => break,
            part => stream.read_exact(&mut blocks[next][part..]).and_then(|()| stream.write_all(&[1]))?,
        }
    }
    #[cfg(feature = "rdma")]
    mirror_reads::serve(&device, &reads)?;
    Ok(true)
}

/// Sends frames to `address` both ways in turn, and prints the rates. Returns whether the mirror
/// reaches the bar.
pub(crate) fn send(address: &str) -> Result<bool, Box<dyn Error>> {
    let address: IpAddr = address.parse()?;
    let pool = Pool::connect(PoolOptions::new("bench").mode(PoolMode::Private))?;
    let producer = pool.producer(&ProducerOptions::new(FRAME_BYTES as u64, BLOCKS).quota(BLOCKS))?;
    let mut plain = connect((address, PLAIN_PORT))?;
    let mut reaches_bar = true;
    for window in [1, 4] {
        let options = MirrorSenderOptions::new().window(window);
        let mirror = MirrorSender::connect((address, MIRROR_PORT), options)?;
        let frames = Frames { pool: &pool, producer: &producer, window };
        let (mut by_mirror, mut by_plain) = (Timings::default(), Timings::default());
        // The first round makes the segment of the receiver and opens the windows of TCP.
        for round in 0..=ROUNDS {
            let (mirrored, sent) = (frames.by_mirror(&mirror)?, frames.by_plain(&mut plain)?);
            if round > 0 {
                by_mirror.add(mirrored);
                by_plain.add(sent);
            }
        }
        let (mirrored, sent) = (rate(by_mirror.median()), rate(by_plain.median()));
        let ratio = mirrored / sent;
        println!(
            "window {window}: mirror {mirrored:.2} frames/s, plain TCP {sent:.2} frames/s, ratio {ratio:.3} (bar {BAR})"
        );
        reaches_bar &= ratio >= BAR;
    }
    #[cfg(feature = "rdma")]
    {
        reaches_bar &= send_by_rdma(address, &pool, &producer, &mut plain)?;
    }
    Ok(reaches_bar)
}

/// Sends frames to `address` by a mirror with RDMA and by plain TCP in turn, and prints the rates,
/// and the rate of the bare reads of the same devices. A mirror has to reach the bar against the
/// slower one of the rivals: it cannot be faster than its device.
#[cfg(feature = "rdma")]
fn send_by_rdma(
    address: IpAddr,
    pool: &Pool,
    producer: &Producer,
    plain: &mut TcpStream,
) -> Result<bool, Box<dyn Error>> {
    let device = mirror_reads::device()?;
    let mut rates = Vec::new();
    for window in [1, 4] {
        let options = MirrorSenderOptions::new().window(window).rdma(device.clone());
        let mirror = MirrorSender::connect((address, RDMA_PORT), options)?;
        let frames = Frames { pool, producer, window };
        let (mut by_mirror, mut by_plain) = (Timings::default(), Timings::default());
        for round in 0..=ROUNDS {
            let (mirrored, sent) = (frames.by_mirror(&mirror)?, frames.by_plain(plain)?);
            if round > 0 {
                by_mirror.add(mirrored);
                by_plain.add(sent);
            }
        }
        let counters = mirror.counters();
        if counters.streamed > 0 {
            return Err(format!("frames went by TCP: {counters:?}").into());
        }
        rates.push((window, rate(by_mirror.median()), rate(by_plain.median()), counters));
    }
    // The other side serves the reads when there is no plain connection any more.
    plain.shutdown(std::net::Shutdown::Both)?;
    let mut reads = connect((address, READ_PORT))?;
    let bare = mirror_reads::measure(&device, &mut reads, FRAME_BYTES, ROUNDS * FRAMES_IN_A_ROUND as usize)?;
    let mut reaches_bar = true;
    for (window, mirrored, sent, counters) in rates {
        let (to_plain, to_reads) = (mirrored / sent, mirrored / bare);
        println!(
            "window {window}: mirror by RDMA {mirrored:.2} frames/s, plain TCP {sent:.2} frames/s, ratio {to_plain:.3}; bare reads {bare:.2} frames/s, ratio {to_reads:.3} (bar {BAR} of the slower); {counters:?}"
        );
        reaches_bar &= mirrored >= BAR * sent.min(bare);
    }
    Ok(reaches_bar)
}

/// Returns the frames per second of a round.
fn rate(time: Duration) -> f64 {
    f64::from(FRAMES_IN_A_ROUND) / time.as_secs_f64()
}

/// Connects to a receiver that starts at the same time.
fn connect(address: (IpAddr, u16)) -> Result<TcpStream, Box<dyn Error>> {
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        match TcpStream::connect(address) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                return Ok(stream);
            }
            Err(error) if Instant::now() > until => return Err(error.into()),
            Err(_) => std::thread::sleep(Duration::from_millis(100)),
        }
    }
}

/// The frames of one round.
struct Frames<'f> {
    pool: &'f Pool,
    producer: &'f Producer,
    window: u32,
}

impl Frames<'_> {
    /// Publishes a frame.
    fn publish(&self) -> Result<hostbuf_pool::Token, Box<dyn Error>> {
        let layout = ArrayLayout::contiguous(ElementType::UInt8, &[FRAME_BYTES as u64])?;
        Ok(self.producer.take()?.publish(layout)?)
    }

    fn by_mirror(&self, mirror: &MirrorSender) -> Result<Duration, Box<dyn Error>> {
        let begun = Instant::now();
        let mut pending = Vec::new();
        for _ in 0..FRAMES_IN_A_ROUND {
            let deadline = Instant::now() + Duration::from_secs(60);
            // Waits while the window is full.
            pending.push(mirror.begin(self.pool, &self.publish()?, deadline)?);
        }
        for frame in pending {
            frame.wait()?;
        }
        Ok(begun.elapsed())
    }

    fn by_plain(&self, stream: &mut TcpStream) -> Result<Duration, Box<dyn Error>> {
        let begun = Instant::now();
        let mut in_flight = 0;
        for _ in 0..FRAMES_IN_A_ROUND {
            if in_flight == self.window {
                stream.read_exact(&mut [0])?;
                in_flight -= 1;
            }
            let block = self.pool.acquire(&self.publish()?)?;
            let mut rest = block.as_slice();
            while !rest.is_empty() {
                let sent = stream.write_vectored(&[IoSlice::new(rest)])?;
                rest = &rest[sent..];
            }
            in_flight += 1;
        }
        for _ in 0..in_flight {
            stream.read_exact(&mut [0])?;
        }
        Ok(begun.elapsed())
    }
}
