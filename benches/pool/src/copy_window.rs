//! Copies to a GPU of which several are in flight.

#![allow(unsafe_code, reason = "starts copies of the CUDA driver")]

use std::time::{Duration, Instant};

use hostbuf_bench_pool::FRAME;
use hostbuf_cuda::{CudaContext, CudaError, CudaEvent, CudaStream, DeviceMemory, Driver, PageLockedMemory};

/// The copies that are in flight at the same time.
pub(crate) const WINDOW: usize = 4;

/// A GPU with memory for the frames in flight.
pub(crate) struct CopyWindow {
    stream: CudaStream,
    slots: Vec<(DeviceMemory, CudaEvent)>,
    own: Vec<PageLockedMemory>,
}

impl CopyWindow {
    /// Opens the first GPU.
    pub(crate) fn new() -> Result<CopyWindow, String> {
        let open = || {
            let context = CudaContext::retain(&Driver::find()?.gpu(0)?)?;
            let slot = |_| Ok((DeviceMemory::new(&context, FRAME)?, CudaEvent::new(&context)?));
            let slots = (0..WINDOW).map(slot).collect::<Result<_, CudaError>>()?;
            let own =
                (0..WINDOW).map(|_| PageLockedMemory::new(&context, FRAME)).collect::<Result<_, _>>()?;
            Ok(CopyWindow { stream: CudaStream::new(&context)?, slots, own })
        };
        open().map_err(|error: CudaError| error.to_string())
    }

    /// Returns frames in memory of cuMemHostAlloc.
    pub(crate) fn own(&self) -> [&[u8]; WINDOW] {
        std::array::from_fn(|at| {
            // SAFETY: the memory is as long as a frame, and only `own_mut` writes to it.
            unsafe { std::slice::from_raw_parts(self.own[at].as_ptr(), FRAME) }
        })
    }

    /// Returns a frame in memory of cuMemHostAlloc, to be written.
    pub(crate) fn own_mut(&mut self, at: usize) -> &mut [u8] {
        // SAFETY: as above; no copy is in flight between two calls.
        unsafe { std::slice::from_raw_parts_mut(self.own[at].as_ptr(), FRAME) }
    }

    /// Copies the frames in turn, `copies` times in all, and returns the time until the last copy
    /// is complete.
    pub(crate) fn run(&self, frames: [&[u8]; WINDOW], copies: usize) -> Result<Duration, String> {
        if frames.iter().any(|frame| frame.len() != FRAME) {
            return Err(format!("a frame has not {FRAME} bytes"));
        }
        let begun = Instant::now();
        let result = self.copy(frames, copies);
        // No copy is in flight when this returns, also after an error.
        let complete = self.stream.synchronize();
        let time = begun.elapsed();
        result.and(complete).map(|()| time).map_err(|error| error.to_string())
    }

    fn copy(&self, frames: [&[u8]; WINDOW], copies: usize) -> Result<(), CudaError> {
        for at in 0..copies {
            let (target, event) = &self.slots[at % WINDOW];
            if at >= WINDOW {
                event.synchronize()?;
            }
            // SAFETY: the caller waits for the stream while it has the frames; the target has the
            // length of a frame.
            unsafe { self.stream.copy_to_device(frames[at % WINDOW], target.address()) }?;
            event.record(&self.stream)?;
        }
        Ok(())
    }

    /// Returns whether the memory of the GPU has the bytes of the frames.
    pub(crate) fn has(&self, frames: [&[u8]; WINDOW]) -> Result<bool, String> {
        let mut back = vec![0; FRAME];
        for ((memory, _), frame) in self.slots.iter().zip(frames) {
            // SAFETY: both live until the stream is synchronised.
            let copied = unsafe { self.stream.copy_to_host(memory.span(), &raw mut back[..]) };
            copied.and_then(|()| self.stream.synchronize()).map_err(|error| error.to_string())?;
            if back != frame {
                return Ok(false);
            }
        }
        Ok(true)
    }
}
