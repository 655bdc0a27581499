//! Devices to and from which rings copy.

mod copy_device;
mod copy_direction;
#[cfg(feature = "cuda")]
mod cuda_device;
#[cfg(feature = "cuda")]
mod cuda_order;
mod device_buffer;
mod device_copy;
mod device_error;
mod device_rows;
mod host_device;
#[cfg(any(test, feature = "testing"))]
mod pending_copies;
#[cfg(any(test, feature = "testing"))]
mod simulated_copies;
#[cfg(any(test, feature = "testing"))]
mod simulated_device;
#[cfg(any(test, feature = "testing"))]
mod simulated_stream;
mod stream_device;

pub use copy_device::CopyDevice;
pub use copy_direction::CopyDirection;
#[cfg(feature = "cuda")]
pub use cuda_device::CudaDevice;
#[cfg(feature = "cuda")]
pub use cuda_order::CudaStreamCopies;
pub use device_buffer::{DeviceBuffer, DeviceTarget, InvalidTarget};
pub use device_copy::DeviceCopy;
pub use device_error::DeviceError;
pub use device_rows::DeviceRows;
pub use host_device::HostDevice;
#[cfg(any(test, feature = "testing"))]
pub use simulated_copies::SimulatedCopies;
#[cfg(any(test, feature = "testing"))]
pub use simulated_device::{Fault, SimulatedDevice, SimulatedEvent, SimulatedMemory};
#[cfg(any(test, feature = "testing"))]
pub use simulated_stream::SimulatedStream;
pub use stream_device::{BeginTransfer, NotifyRing, StreamCopies, StreamDevice};
