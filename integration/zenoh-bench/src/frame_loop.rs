//! Frames that one consumer receives as fast as it can.

use std::time::{Duration, Instant};

use hostbuf_pool::Pool;
use zenoh::handlers::FifoChannelHandler;
use zenoh::pubsub::Subscriber;
use zenoh::sample::Sample;

use crate::camera_process::CameraProcess;
use crate::frame_carrier::{FrameCarrier, Touched};
use crate::received_frame::ReceivedFrame;

/// The frames that are requested ahead.
pub(crate) const IN_FLIGHT: usize = 4;

/// A consumer that receives frames of one camera as fast as it can.
pub(crate) struct FrameLoop<'a> {
    pub(crate) camera: &'a mut CameraProcess,
    pub(crate) subscriber: &'a Subscriber<FifoChannelHandler<Sample>>,
    pub(crate) pool: &'a Pool,
    pub(crate) carrier: FrameCarrier,
    pub(crate) touched: Touched,
}

impl FrameLoop<'_> {
    /// Receives frames for `time`. Returns the frames per second, and whether zenoh has passed
    /// shared memory.
    pub(crate) fn run(&mut self, time: Duration) -> Result<(f64, bool), String> {
        let begun = Instant::now();
        let (mut requested, mut frames, mut is_shared) = (0, 0u32, true);
        loop {
            while requested < IN_FLIGHT && begun.elapsed() < time {
                self.camera.request(self.carrier, self.touched)?;
                requested += 1;
            }
            if requested == 0 {
                break;
            }
            let frame = ReceivedFrame::wait(self.subscriber)?;
            requested -= 1;
            frame.read(self.carrier, self.pool, self.touched)?;
            is_shared &= frame.is_shared();
            frames += 1;
        }
        Ok((f64::from(frames) / begun.elapsed().as_secs_f64(), is_shared))
    }
}

/// Returns the median of values.
pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}
