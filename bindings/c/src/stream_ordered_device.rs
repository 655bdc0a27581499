//! A GPU whose copies begin after the work of a stream of the program.

#![allow(unsafe_code, reason = "a stream is a handle of the caller")]

use std::ffi::c_void;

use hostbuf_cuda::{BorrowedStream, CudaContext, CudaEvent, Driver};
use hostbuf_staging::{CudaDevice, DeviceError};

use crate::gpu_stream::borrowed;
use crate::pool_status::cuda_error;
use crate::status::{CallError, CallResult, hostbuf_status as S};

/// A GPU, with a stream of its own, whose copies begin after the work of a stream of the program.
pub(crate) struct StreamOrderedDevice {
    device: CudaDevice,
    /// The handle of the program's stream.
    stream: usize,
}

impl StreamOrderedDevice {
    /// Opens the GPU that has the number `gpu` in this process.
    ///
    /// # Errors
    /// `HOSTBUF_UNSUPPORTED`: there is no driver or no such GPU, or a graph captures the stream.
    ///
    /// # Safety
    /// `stream` is null, or a stream of the GPU that exists as long as the result.
    pub(crate) unsafe fn open(gpu: u32, stream: *mut c_void) -> CallResult<StreamOrderedDevice> {
        let context = Driver::find().and_then(|driver| CudaContext::retain(&driver.gpu(gpu)?));
        let refused = |error: DeviceError| CallError::Status(S::HOSTBUF_UNSUPPORTED, error.to_string());
        let device = CudaDevice::of_thread(&context.map_err(cuda_error)?).map_err(refused)?;
        let opened = StreamOrderedDevice { device, stream: stream as usize };
        if opened.program_stream()?.is_capturing().map_err(cuda_error)? {
            let why = "the stream is being captured, and a graph cannot contain the copies: copy before or after it";
            return Err(CallError::Status(S::HOSTBUF_UNSUPPORTED, why.to_owned()));
        }
        Ok(opened)
    }

    pub(crate) fn device(&self) -> &CudaDevice {
        &self.device
    }

    pub(crate) fn context(&self) -> &CudaContext {
        self.device.stream().context()
    }

    /// Lets the copies that start from now on wait for the work that the program's stream has now.
    pub(crate) fn wait_for_stream(&self) -> CallResult<()> {
        let event = CudaEvent::after(&self.program_stream()?).map_err(cuda_error)?;
        self.device.stream().wait(&event).map_err(cuda_error)
    }

    fn program_stream(&self) -> CallResult<BorrowedStream> {
        // SAFETY: by the contract of `open`.
        unsafe { borrowed(self.context(), self.stream as *mut c_void) }
    }
}
