//! A frame in the consumer's hand.

use std::borrow::Cow;
use std::time::Duration;

use hostbuf_bench_pool::{FRAME, is_whole};
use hostbuf_pool::{BlockRef, Pool};
use zenoh::handlers::FifoChannelHandler;
use zenoh::pubsub::Subscriber;
use zenoh::sample::Sample;

use crate::frame_carrier::{FrameCarrier, Touched};

/// The time for which the consumer waits for a frame.
const LIMIT: Duration = Duration::from_secs(10);

/// The message of a frame.
pub(crate) struct ReceivedFrame {
    sample: Sample,
    /// The number in the frame's stamps.
    pub(crate) stamp: u64,
    /// The time at which the camera had written the frame, of CLOCK_MONOTONIC.
    pub(crate) ready_ns: u64,
}

impl ReceivedFrame {
    /// Waits for the next message.
    pub(crate) fn wait(subscriber: &Subscriber<FifoChannelHandler<Sample>>) -> Result<ReceivedFrame, String> {
        let sample = subscriber.recv_timeout(LIMIT).map_err(|error| error.to_string())?;
        let sample = sample.ok_or_else(|| format!("no frame within {} s", LIMIT.as_secs()))?;
        let about = sample.attachment().ok_or("a message without its stamp")?.to_bytes();
        let number = |at: usize| Some(u64::from_ne_bytes(about.get(at..at + 8)?.try_into().ok()?));
        let (stamp, ready_ns) = number(0).zip(number(8)).ok_or("a message with half of its stamp")?;
        drop(about);
        Ok(ReceivedFrame { sample, stamp, ready_ns })
    }

    /// Returns whether zenoh has passed shared memory.
    pub(crate) fn is_shared(&self) -> bool {
        self.sample.payload().as_shm().is_some()
    }

    /// Returns the bytes of the message.
    pub(crate) fn bytes(&self) -> Cow<'_, [u8]> {
        self.sample.payload().to_bytes()
    }

    /// Acquires the block whose token the message is.
    pub(crate) fn block(&self, pool: &Pool) -> Result<BlockRef, String> {
        pool.acquire_bytes(&self.bytes()).map_err(|error| error.to_string())
    }

    /// Reads the frame on the processor, and compares its stamps. A torn frame is an error.
    pub(crate) fn read(&self, carrier: FrameCarrier, pool: &Pool, touched: Touched) -> Result<(), String> {
        match carrier {
            FrameCarrier::Token => self.check(self.block(pool)?.as_slice(), touched),
            _ => self.check(&self.bytes(), touched),
        }
    }

    fn check(&self, frame: &[u8], touched: Touched) -> Result<(), String> {
        if frame.len() != FRAME {
            return Err(format!("{} bytes are no frame", frame.len()));
        }
        if touched == Touched::Bytes {
            // Every byte: the pages differ in their stamps only.
            let sum = frame.chunks_exact(8).fold(0u64, |sum, word| {
                sum.wrapping_add(u64::from_ne_bytes(word.try_into().expect("8 bytes")))
            });
            std::hint::black_box(sum);
        }
        if is_whole(frame, self.stamp) { Ok(()) } else { Err("a torn frame".into()) }
    }
}
