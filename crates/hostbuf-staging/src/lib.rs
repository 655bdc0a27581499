//! Rings of registered memory between files and devices.
//!
//! A [`Ring`] moves bytes between a [`ReadAt`] or [`WriteAt`] on the host and the memory of a
//! [`CopyDevice`]. Its threads fill slots of registered memory in pieces, and the device copies
//! each slot whole, while the next ones are being filled:
//!
//! ```text
//! source --reads of 1 MiB by several threads--> slot --one copy of 8 MiB--> device
//! ```

mod counters;
mod device;
mod file;
#[cfg(feature = "nvtx")]
mod nvtx_domain;
mod profiler_range;
mod range_name;
mod read_write_at;
#[cfg(feature = "remote")]
mod remote;
mod ring;
#[cfg(all(test, loom))]
mod slot_interleavings;
mod slot_word;
mod sync;
#[cfg(all(test, not(loom)))]
mod tests;
mod transfer;

pub use counters::{RingCounters, RingStatus, StagingBound};
pub use device::{
    BeginTransfer, CopyDevice, CopyDirection, DeviceBuffer, DeviceCopy, DeviceError, DeviceRows,
    DeviceTarget, HostDevice, InvalidTarget, NotifyRing, StreamCopies, StreamDevice,
};
#[cfg(feature = "cuda")]
pub use device::{CudaDevice, CudaStreamCopies};
#[cfg(any(test, feature = "testing"))]
pub use device::{Fault, SimulatedCopies, SimulatedDevice, SimulatedEvent, SimulatedMemory, SimulatedStream};
pub use file::{
    Backend, BackendChoice, CachedPages, File, FileOptions, OpenError, cached_pages, cached_pages_in,
    drop_cached_pages, is_in_memory,
};
#[cfg(feature = "cuda")]
pub use file::{CuFile, CuFileBuffer, CuFileCode, CuFileDriver, CuFileError};
pub use profiler_range::ThreadRange;
pub use range_name::RangeName;
pub use read_write_at::{NamedFile, ReadAt, WriteAt};
#[cfg(feature = "remote")]
pub use remote::{RemoteClient, RemoteError, RemoteFile, RemoteOptions, RemoteProblem, RequestMode};
pub use ring::{BorrowedMemory, HostMemory, InvalidRing, Ring, RingError, RingMemory, RingOptions};
pub use transfer::{Transfer, TransferError, TransferPart};
