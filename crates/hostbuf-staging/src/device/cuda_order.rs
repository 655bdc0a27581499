//! The order between the streams of a program and transfers, by the CUDA driver.

use hostbuf_cuda::{BorrowedStream, CudaError, StreamWord};

use super::copy_device::CopyDevice;
use super::cuda_device::CudaDevice;
use super::device_error::DeviceError;
use super::stream_device::{BeginTransfer, StreamDevice};

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
    type Hold = StreamWord;

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

    fn hold(&self, stream: &BorrowedStream) -> Result<StreamWord, DeviceError> {
        let word = StreamWord::new(stream.context()).map_err(|error| self.order_error(error))?;
        match stream.wait_for_word(&word) {
            Ok(()) => Ok(word),
            Err(error) => {
                word.discard();
                Err(self.order_error(error))
            }
        }
    }
}
