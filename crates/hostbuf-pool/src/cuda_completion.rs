//! The end of holds by events of a GPU.

use std::io;

use hostbuf_cuda::CudaEvent;

use crate::releases::Completion;

/// `block.release_after(CudaEvent::after(&stream)?)` ends a hold when the GPU has completed all
/// work that the stream has now, such as a copy of the content.
impl Completion for CudaEvent {
    fn is_complete(&self) -> io::Result<bool> {
        CudaEvent::is_complete(self).map_err(io::Error::other)
    }

    fn wait(&self) -> io::Result<()> {
        self.synchronize().map_err(io::Error::other)
    }
}
