//! Registration of memory with devices, and a cache of registrations.
//!
//! | concept | type | description |
//! | --- | --- | --- |
//! | range, rights | [`Span`], [`Access`] | addresses of this process; the access that a device gets |
//! | device | [`Registrar`] | registers and deregisters memory: [`Mlock`], `CudaHost` (feature `cuda`), `Verbs` (feature `rdma`); [`DeviceName`] selects one by name |
//! | proof | [`Registration`] | the range is registered as long as this object lives |
//! | cache | [`RegistrationCache`] | finds registrations by address, within a hard [`Budget`] |
//! | hold | [`Lease`] | keeps a registration alive while it is used |
//! | registered from the start | [`PinnedAlloc`] | memory that this crate allocates |
//! | reports of changes | [`MonitorMode`] | from the kernel (strict, the default) or from the program |
//!
//! ```
//! use std::sync::Arc;
//! use hostbuf_register::{Access, Budget, Mlock, MonitorMode, RegistrationCache};
//!
//! let budget = Budget::new(16).bytes(1 << 20);
//! let cache = RegistrationCache::new(Arc::new(Mlock::new()), budget, MonitorMode::Strict)?;
//! let message = vec![7u8; 8192];
//! for _ in 0..3 {
//!     let lease = cache.get(message.as_ptr(), message.len(), Access::READ)?;
//!     // ... send it, by lease.key() ...
//!     drop(lease);
//! }
//! let stats = cache.stats();
//! assert_eq!(stats.hits + stats.misses + stats.coalesced, 3);
//! # Ok::<(), hostbuf_register::Error>(())
//! ```
//!
//! # Coverage of the strict monitor
//!
//! The monitor sees every change of private anonymous memory that the kernel reports: munmap, mmap
//! over it, mremap from and onto it, brk, and madvise with DONTNEED, DONTNEED_LOCKED, FREE and
//! REMOVE, whichever library makes the call, and so `free` and `realloc`. It cannot watch files
//! (including private mappings, and so the initialised data of a program), shared memory of other
//! owners, and huge pages of the pool (`MAP_HUGETLB`). Such memory is registered for its leases
//! only, and counted by cause. On a device without overlapping registrations, only one lease at a
//! time can then have a range. hostbuf's own memory needs no watching, since a registration keeps
//! it mapped.
//!
//! If this process can have no such monitor (containers often forbid userfaultfd), the cache keeps
//! no registrations of foreign memory: a `tracing` event reports it when the cache is made,
//! [`Stats::unproven`] counts the requests, and [`MonitorMode::probe`] returns the reason.
//!
//! A request waits for changes in progress in memory that the same userfaultfd watches: about 1 ms
//! per userfaultfd, or up to 20 ms if the monitor's thread gets no core; a miss may wait several
//! times. The monitor spreads mappings over up to 16 userfaultfds (`HOSTBUF_CACHE_DESCRIPTORS`), so
//! a change in one mapping does not delay requests for most others. If changes continue without a
//! pause, the memory is registered for its lease only and counted as busy. If a change takes more
//! than a second and the kernel has no event for it, memory of that userfaultfd is registered for
//! its leases only and counted as unproven until the change ends.
//!
//! From Linux 6.11 on, the monitor does not watch pages while the program discards them hundreds of
//! times a second, so that hits in the rest of their mapping do not wait. Meanwhile the kernel
//! splits the mapping, and an `mremap` over more than one part fails with `EFAULT`. On older
//! kernels hits in that mapping wait for each discard.
//!
//! A thread that changes watched memory waits until the monitor's thread has read the event: some
//! microseconds, or longer if threads of a higher priority keep the monitor's thread from running.
//!
//! The kernel reports a discard (`madvise`) *before* it takes the pages. A request for such pages
//! waits until the discarding thread runs again, one millisecond more, and until that thread has
//! released the lock of the address space. One gap remains: the discarding thread is preempted
//! within a few dozen instructions of the kernel and gets no core for that millisecond. This
//! concerns only programs in which one thread sends pages while another discards them; they call
//! [`invalidate`](RegistrationCache::invalidate) after `madvise`.
//!
//! # Threads
//!
//! A hit on foreign memory makes a system call on the mapping's userfaultfd. Threads that use the
//! same descriptor share the cache line in which the kernel counts its references. If many threads
//! send from one mapping, each of them should call [`MonitorMode::unshare_descriptors`] when it
//! starts.
//!
//! A thread may lack the monitor's descriptors, because it called `unshare` itself before the
//! monitor started or because the program closed descriptors that it does not own. Its requests are
//! then registered for their leases only; one warning reports it, and [`Stats::unproven`] counts
//! the requests.
//!
//! Some files answer a hit's ioctl as a quiet userfaultfd does: an epoll instance since Linux 6.9,
//! `/dev/urandom`, KVM. A thread in whose table such a file has the number of a userfaultfd detects
//! it with its next miss there. Until then its hits are checked against the changes that the
//! monitor has read, but not against a change in progress.
//!
//! # Effects of watching on a program
//!
//! - Its own `UFFDIO_REGISTER` of watched memory fails with `EBUSY`: only one userfaultfd can watch
//!   a mapping.
//! - An `mremap` over two mappings fails with `EFAULT` if one of them is watched. The C library's
//!   `realloc` then copies.
//! - A request for writing still hits after the page has been made read-only (`mprotect`): the
//!   device had the right when the memory was registered, and the kernel does not report changes of
//!   protection.
//!
//! The kernel reports nothing for `shmat` with `SHM_REMAP`, `remap_file_pages`,
//! `MADV_GUARD_INSTALL`, and for holes and truncation of a file through a descriptor. Before a
//! program does so to registered memory, it calls [`invalidate`](RegistrationCache::invalidate).

mod cache;
#[cfg(feature = "cuda")]
mod cuda;
mod devices;
mod environment;
pub mod error;
mod lock_counts;
mod memory;
mod mlock;
mod monitor;
pub mod own_ranges;
mod pinned;
mod properties;
mod registrar;
mod ring_memory;
mod span;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(feature = "rdma")]
mod verbs;

pub use cache::{Budget, Lease, RegistrationCache, Stats};
#[cfg(feature = "cuda")]
pub use cuda::{CudaChunk, CudaHandle, CudaHost};
pub use devices::{
    Device, DeviceCheck, DeviceHandle, DeviceKey, DeviceList, DeviceName, DeviceObjects, DevicePart,
    ListedDevice, SystemLibrary,
};
pub use error::{Error, Result};
pub use hostbuf_memory::NoSpace;
pub use memory::{DeviceRange, DmaBuf, InvalidMemory, Memory};
pub use mlock::Mlock;
pub use monitor::MonitorMode;
pub use pinned::{Pinned, PinnedAlloc};
pub use properties::{Overlap, RegistrarProperties};
pub use registrar::{Probe, Registrar, Registration};
pub use ring_memory::RingMemory;
pub use span::{Access, InvalidSpan, Span};
#[cfg(feature = "rdma")]
pub use verbs::{Verbs, VerbsHandle, VerbsKey};

/// Compiles and runs the examples of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
