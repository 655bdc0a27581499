//! The process that writes frames.

use std::io::{Read, Write};
use std::os::fd::OwnedFd;

use hostbuf_bench_pool::{FRAME, fill, monotonic_ns};
use hostbuf_pool::{ArrayLayout, ElementType, Pool, PoolMode, PoolOptions, ProducerOptions, Token};

use crate::frame_message::FrameMessage;
use crate::shared_ring::SharedRing;

/// Writes a frame for each byte of its input: `p` into a block of the pool at `socket`, `r` into
/// the ring at the path `ring`. Sends a message for each.
pub(crate) fn run(socket: &str, ring: &str) -> Result<bool, String> {
    let file = std::fs::OpenOptions::new().read(true).write(true).open(ring);
    let mut ring = SharedRing::map(&OwnedFd::from(file.map_err(|error| format!("{ring}: {error}"))?))?;
    let options = PoolOptions::new("bench camera").mode(PoolMode::Required).socket(socket);
    let pool = Pool::connect(options).map_err(|error| error.to_string())?;
    let producer = ProducerOptions::new(FRAME as u64, 8).stream("bench");
    let producer = pool.producer(&producer).map_err(|error| error.to_string())?;
    let layout = ArrayLayout::contiguous(ElementType::UInt8, &[1080, 1920, 4]).expect("a layout");
    let (mut input, mut output) = (std::io::stdin(), std::io::stdout());
    let mut request = [0];
    for stamp in 0.. {
        if input.read_exact(&mut request).is_err() {
            break;
        }
        let name = match request {
            [b'p'] => {
                let mut block = producer.take().map_err(|error| error.to_string())?;
                fill(&mut block.as_mut_slice()[..FRAME], stamp);
                block.publish(layout).map_err(|error| error.to_string())?.to_bytes()
            }
            _ => {
                ring.write(stamp, |frame| fill(frame, stamp));
                [0; Token::SIZE]
            }
        };
        let message = FrameMessage { name, stamp, ready_ns: monotonic_ns() };
        output
            .write_all(&message.encode())
            .and_then(|()| output.flush())
            .map_err(|error| error.to_string())?;
    }
    Ok(true)
}
