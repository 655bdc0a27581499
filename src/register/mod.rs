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
//! A request waits for changes that are under way in memory that the same userfaultfd watches, about a millisecond at a time, and up
//! to 20 ms where the monitor's thread gets no core. The monitor spreads mappings over up to 16 userfaultfds
//! (`HOSTBUF_CACHE_DESCRIPTORS`), so a change in one mapping does not delay requests for most others. If changes do not
//! end, the memory is registered for its lease only, and counted as restless. While one change takes more than a
//! second and the kernel has no event for it, memory of that userfaultfd is registered for its leases only, and counted as
//! unproven.
//!
//! Pages that the program discards hundreds of times a second are not watched while that lasts, so that the rest of their mapping
//! stays quiet. The kernel keeps the mapping in parts meanwhile, and an `mremap` over more than one of them fails with
//! `EFAULT`.
//!
//! Whoever changes watched memory waits until the monitor's thread has read of it: some microseconds, and as long as that
//! thread gets no core where others of a higher priority have them all.
//!
//! A discard (`madvise`) is reported *before* the pages go. A request for such pages waits until the discarding thread runs again,
//! a millisecond more, and until that thread has let go of the address space's lock. One gap remains: that thread is preempted
//! between a few dozen instructions of the kernel, and gets no core for that millisecond. It matters to programs only in which one
//! thread sends pages while another discards them; they call [`invalidate`](RegistrationCache::invalidate) after madvise.
//!
//! # Threads
//!
//! A hit on foreign memory asks the kernel, by a system call on the mapping's userfaultfd. Threads that ask the same descriptor
//! share the cache line in which the kernel counts its references. Where many threads send from one mapping, each of them calls
//! [`Monitor::unshare_descriptors`] when it begins.
//!
//! A thread whose table of descriptors does not have the monitor's (it called `unshare` itself before the monitor started, or the
//! program closed descriptors that are not its own) is served for its leases only; one warning says so, and
//! [`Stats::unproven`] counts.
//!
//! # What a program notices of being watched
//!
//! - Its own `UFFDIO_REGISTER` of watched memory fails with `EBUSY`: the kernel lets one userfaultfd watch a mapping.
//! - One `mremap` over two mappings fails with `EFAULT` once one of them is watched. The C library's `realloc` copies then.
//! - A request for writing hits on a registration also when the page has been made read-only since (`mprotect`): the device had the
//!   right when it was registered, and the kernel reports no change of rights.
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
