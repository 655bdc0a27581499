//! Registration with devices, and a cache that never registers twice what is registered.
//!
//! | concept | type | what it is |
//! | --- | --- | --- |
//! | range, rights | [`Span`], [`Access`] | addresses of this process; what a device may do there |
//! | device | [`Registrar`] | makes and ends registrations: [`Mlock`], [`CudaHost`] (feature `cuda`), `Verbs` (feature `rdma`); [`Device`] is whichever a name says |
//! | proof | [`Registration`] | the device knows a range as long as this lives |
//! | cache | [`RegistrationCache`] | finds them again by address, within a hard [`Budget`] |
//! | hold | [`Lease`] | keeps one alive while it is used |
//! | registered from the start | [`PinnedAlloc`], [`HostBuffer::register`](crate::HostBuffer::register) | memory that hostbuf makes |
//! | who tells of changes | [`Monitor`] | the kernel (strict, the default), or the program |
//!
//! ```
//! use std::sync::Arc;
//! use hostbuf::register::{Access, Budget, Mlock, Monitor, RegistrationCache};
//!
//! let budget = Budget { regions: 16, bytes: 1 << 20 };
//! let cache = RegistrationCache::new(Arc::new(Mlock::new()), budget, Monitor::Strict)?;
//! let message = vec![7u8; 8192];
//! for _ in 0..3 {
//!     let lease = cache.get(message.as_ptr(), message.len(), Access::READ)?;
//!     // ... send it, by lease.key() ...
//!     drop(lease);
//! }
//! let stats = cache.stats();
//! assert_eq!(stats.hits + stats.misses + stats.coalesced, 3);
//! # Ok::<(), hostbuf::Error>(())
//! ```
//!
//! # What the strict monitor sees, and what it does not
//!
//! It sees every change of anonymous private memory that the kernel reports: munmap, mmap over it, mremap from and onto, brk,
//! madvise with DONTNEED, DONTNEED_LOCKED, FREE and REMOVE, whoever calls it and by whatever library, and so `free` and
//! `realloc`. Memory that it cannot watch (files, private ones too, and so the initialised data of a program; shared memory
//! of other owners; huge pages of the pool, `MAP_HUGETLB`) is registered for its leases only, and counted by cause. A device
//! that knows no overlapping registrations can then have a range for one lease at a time. hostbuf's own memory needs no watching: a
//! registration keeps it.
//!
//! Where this process can have no such monitor (containers often forbid userfaultfd) nothing foreign is kept: a `tracing` event
//! says so when the cache is made, [`Stats::unproven`] counts, and [`Monitor::probe`] says why.
//!
//! A request waits for others' changes of memory for about a millisecond at a time, and up to 20 ms where the
//! monitor's own thread gets no core. If there is no end of them its memory is
//! registered for its lease only, and counted as restless. While one change takes more than a second and the kernel does
//! not say what it is, nothing is kept: memory is registered for its leases only, and counted as unproven.
//!
//! Whoever changes watched memory waits until the monitor's thread has read of it: some microseconds, and as long as that
//! thread gets no core where others of a higher priority have them all.
//!
//! madvise is told *before* the pages go. What is asked for while the call is under way, or within 100 ms afterwards, is
//! registered for its lease only, and counted as restless; it is kept again when everybody who was taking pages is done. One gap
//! remains: a thread that the kernel has told to go on, and that gets no core for 100 ms, before it takes the first page.
//! Who cannot rule that out, and lets one thread give pages back while another sends them, calls
//! [`invalidate`](RegistrationCache::invalidate) after madvise.
//!
//! The kernel reports nothing for `shmat` with `SHM_REMAP`, `remap_file_pages`, `MADV_GUARD_INSTALL`, and for holes and
//! truncation of a file through a descriptor. Who does that to registered memory calls
//! [`invalidate`](RegistrationCache::invalidate) before.

mod buffer;
mod cache;
#[cfg(feature = "cuda")]
mod cuda;
mod device;
mod environment;
#[doc(hidden)]
pub mod fake;
mod locked;
mod mlock;
mod monitor;
mod pinned;
mod registrar;
#[cfg(feature = "rdma")]
mod verbs;

pub use crate::span::{Access, Span};
pub use cache::{Budget, Lease, RegistrationCache, Stats};
#[cfg(feature = "cuda")]
pub use cuda::{CudaChunk, CudaHandle, CudaHost};
pub use device::{Device, DeviceHandle, DeviceKey, DeviceName};
pub use mlock::Mlock;
pub use monitor::Monitor;
pub use pinned::{Pinned, PinnedAlloc};
pub use registrar::{Overlap, Probe, Registrar, Registration};
#[cfg(feature = "rdma")]
pub use verbs::{Verbs, VerbsHandle, VerbsKey};
