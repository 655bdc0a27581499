//! The CUDA driver, loaded at run time: contexts, streams, events, and memory that processes share.
//!
//! | concept | type | description |
//! | --- | --- | --- |
//! | driver | [`Driver`] | libcuda, loaded by the first call that asks for it, and never before |
//! | device | [`CudaGpu`] | a GPU that the process sees, with its [`GpuUuid`] and [`GpuFeature`]s |
//! | context | [`CudaContext`] | the primary context of a GPU, released by its last user |
//! | work | [`CudaStream`], [`BorrowedStream`], [`CopyBatch`], [`PitchedCopy`], [`CudaEvent`] | copies, and the order between them, also between processes |
//! | threads and streams | [`BorrowedStream::call_after`], [`DeferredCopies`] | threads that wait for a stream, and streams that wait for a thread |
//! | host memory | [`CurrentContext::register_host`], [`PageLockedMemory`] | memory that GPUs copy at full speed |
//! | memory of a GPU | [`DeviceMemory`] | for this process |
//! | shared memory of a GPU | [`PhysicalMemory`], [`VirtualRange`], [`MappedMemory`] | by a file descriptor, at an address of choice; with a context or without |
//! | memory of others | [`IpcMemory`] | by legacy handles, which this crate opens and never makes |
//!
//! Each object keeps the context in which it was made, and ends in its destructor. A destructor
//! that the driver refuses logs an error (`tracing`). If the context is gone, because the process
//! exits or somebody reset it, the objects have ended with it, and destructors do nothing. In a
//! forked child, all requests are [`CudaError::Forked`], and destructors do nothing.
//!
//! A function that an old driver lacks is [`CudaError::MissingFunction`] when it is wanted; the
//! rest of the crate works without it.

mod capture_mode;
mod copy_batch;
mod copy_kernel;
mod copy_requests;
mod cuda_code;
mod cuda_context;
mod cuda_error;
mod cuda_event;
mod cuda_gpu;
mod cuda_stream;
mod deferred_copies;
mod device_memory;
mod device_span;
mod driver;
mod driver_caller;
mod enqueued_copies;
mod event_pool;
mod free_memory;
mod functions;
mod gpu_access;
mod gpu_uuid;
mod host_registration;
mod ipc_memory;
mod mapped_memory;
mod page_locked_memory;
mod physical_memory;
mod pitched_copy;
mod stream_order;
#[cfg(test)]
mod tests;
mod thread_streams;
mod virtual_range;
mod visible_gpus;

pub use capture_mode::RelaxedCapture;
pub use copy_batch::{BatchedCopy, CopyBatch};
pub use cuda_code::CudaCode;
pub use cuda_context::{CudaContext, CurrentContext};
pub use cuda_error::CudaError;
pub use cuda_event::CudaEvent;
pub use cuda_gpu::{CudaGpu, GpuFeature};
pub use cuda_stream::{BorrowedStream, CudaStream, StreamHandle};
pub use deferred_copies::DeferredCopies;
pub use device_memory::DeviceMemory;
pub use device_span::DeviceSpan;
pub use driver::Driver;
pub use driver_caller::DriverCaller;
pub use gpu_access::GpuAccess;
pub use gpu_uuid::{GpuUuid, InvalidUuid};
pub use host_registration::HostAccess;
pub use ipc_memory::IpcMemory;
pub use mapped_memory::MappedMemory;
pub use page_locked_memory::PageLockedMemory;
pub use physical_memory::PhysicalMemory;
pub use pitched_copy::PitchedCopy;
pub use virtual_range::VirtualRange;

/// Compiles and runs the examples of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
