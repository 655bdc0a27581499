//! GPU sections (`gpu=`): memory on one or several GPUs, at one address in all ranks.
//!
//! Before `main`, the ranks that use GPUs ask the driver for the candidates of a vote
//! (`GpuHolds`). One rank of each host creates the memory (`MappedSections`), and the agent keeps
//! its descriptors for all others. A program uses [`GpuSection`].

mod gpu_holds;
mod gpu_section;
mod host_gpus;
mod mapped_sections;

#[doc(hidden)]
pub use gpu_holds::GpuHolds;
pub use gpu_section::GpuSection;
#[doc(hidden)]
pub use host_gpus::HostGpus;
#[doc(hidden)]
pub use mapped_sections::MappedSections;

use crate::error::Error;
use hostbuf_cuda::CudaError;

/// The name of the request in errors about GPU sections in general.
const SECTION: &str = "a GPU section";

/// Returns the error of the driver in a request for GPU sections.
fn driver_error(error: &CudaError) -> Error {
    Error::Unsupported { what: SECTION.into(), why: error.to_string() }
}
