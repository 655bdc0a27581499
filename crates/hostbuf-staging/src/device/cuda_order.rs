//! The order between the streams of a program and transfers, by the CUDA driver.

#![allow(unsafe_code, reason = "passes the promises of a ring on to the driver")]

use std::sync::Arc;

use hostbuf_cuda::{BorrowedStream, CudaError, DeferredCopies};

use super::copy_device::CopyDevice;
use super::copy_direction::CopyDirection;
use super::cuda_device::CudaDevice;
use super::device_copy::DeviceCopy;
use super::device_error::DeviceError;
use super::stream_device::{BeginTransfer, NotifyRing, StreamCopies, StreamDevice};

const DOING: &str = "ordering a transfer by a stream";

impl CudaDevice {
    fn order_error(&self, error: CudaError) -> DeviceError {
        DeviceError::refused(self.name(), DOING, error)
    }

    /// Checks that transfers can be ordered by a stream.
    fn check_stream(&self, stream: &BorrowedStream) -> Result<(), DeviceError> {
        let refuse = |why: &'static str| Err(DeviceError::refused(self.name(), DOING, why));
        if stream.context() != self.stream().context() {
            return refuse("the stream belongs to another GPU: use a ring of that GPU");
        }
        if stream.is_capturing().map_err(|error| self.order_error(error))? {
            return refuse(
                "the stream is being captured, and a graph cannot contain a transfer: start it before the capture \
                 begins, or after it has ended",
            );
        }
        Ok(())
    }
}

impl StreamDevice for CudaDevice {
    type Stream = BorrowedStream;
    type Copies = CudaStreamCopies;

    fn begin_after(&self, stream: &BorrowedStream, begin: BeginTransfer) -> Result<(), DeviceError> {
        self.check_stream(stream)?;
        let name = self.name();
        let function = move |error: Option<hostbuf_cuda::CudaCode>| {
            // The driver must not be asked for the name of the error here.
            let failed = |code: hostbuf_cuda::CudaCode| {
                let why =
                    format!("the work before the transfer has failed with error {} of CUDA", code.number());
                DeviceError::refused(name, "waiting for a stream", why)
            };
            begin(error.map_or(Ok(()), |code| Err(failed(code))));
        };
        stream.call_after(function).map_err(|error| self.order_error(error))
    }

    fn new_copies(
        &self,
        stream: &BorrowedStream,
        direction: CopyDirection,
        count: u32,
    ) -> Result<CudaStreamCopies, DeviceError> {
        self.check_stream(stream)?;
        let copies = DeferredCopies::new(stream.context(), count);
        let copies = copies.map_err(|error| self.order_error(error))?;
        Ok(CudaStreamCopies { copies, direction, device: self.name() })
    }

    fn enqueue_copies(
        &self,
        stream: &BorrowedStream,
        copies: &Arc<CudaStreamCopies>,
    ) -> Result<bool, DeviceError> {
        stream.enqueue_copies(&copies.copies).map_err(|error| self.order_error(error))
    }

    fn enqueue_end(
        &self,
        stream: &BorrowedStream,
        copies: &Arc<CudaStreamCopies>,
        executed: NotifyRing,
    ) -> Result<(), DeviceError> {
        stream.enqueue_end(&copies.copies, executed).map_err(|error| self.order_error(error))
    }
}

/// The deferred copies of a stream of a GPU.
#[derive(Debug)]
pub struct CudaStreamCopies {
    copies: DeferredCopies,
    direction: CopyDirection,
    device: String,
}

impl StreamCopies for CudaStreamCopies {
    unsafe fn start(&self, copy: &DeviceCopy) -> u32 {
        // SAFETY: the caller guarantees both sides.
        unsafe { self.copies.start(self.direction.batched(copy)) }
    }

    fn has_ended(&self, number: u32) -> Result<bool, DeviceError> {
        self.copies.has_ended(number).map_err(|error| {
            let error = CudaDevice::error(self.device.clone(), "copying", error);
            if self.copies.is_abandoned(number) { error.lost() } else { error }
        })
    }

    fn end(&self) {
        self.copies.end();
    }
}
