//! Host memory that another part of the program owns.

#![allow(unsafe_code, reason = "the caller promises that the memory stays")]

use std::any::Any;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use hostbuf_memory::populate::Workers;
use hostbuf_memory::{AnonymousSegment, Demand, Pages, PrivateMemory, space};
use hostbuf_os::memory::tightest_limit;
use hostbuf_register::{Access, Error, Pinned, Registrar, Registration, RegistrationCache, RingMemory, Span};

use super::host_memory::HostMemory;
use super::leased_memory::LeasedMemory;
use crate::device::DeviceBuffer;

/// Host memory that another part of the program owns: a region of a buffer, a block of a pool, an
/// array. It is the memory of a ring, or, for rings whose device is the host, the target of
/// transfers.
pub struct BorrowedMemory {
    address: NonNull<u8>,
    bytes: usize,
    /// Dropped after the last access.
    _keeper: Box<dyn Any + Send + Sync>,
}

impl BorrowedMemory {
    /// Borrows the `bytes` at `address` until `keeper` is dropped. `keeper` owns the memory, and
    /// also its registration if there is one.
    ///
    /// # Safety
    /// As long as `keeper` exists, the memory is initialised, readable and writable, and nothing
    /// outside of rings accesses it. As a target, no two transfers access the same bytes at a time,
    /// unless both write to sinks, and others access the memory only while no transfer does.
    pub unsafe fn new(
        address: NonNull<u8>,
        bytes: usize,
        keeper: impl Send + Sync + 'static,
    ) -> BorrowedMemory {
        BorrowedMemory { address, bytes, _keeper: Box::new(keeper) }
    }
}

impl<R: Registrar> From<Pinned<R>> for BorrowedMemory {
    /// Borrows a block of a [`PinnedAlloc`](hostbuf_register::PinnedAlloc), which stays registered.
    fn from(mut block: Pinned<R>) -> BorrowedMemory {
        let bytes = block.len();
        let address = NonNull::from(&mut *block).cast();
        // SAFETY: the block owns the memory, which does not move with it, and nobody else has the
        // block. Allocators give initialised memory.
        unsafe { BorrowedMemory::new(address, bytes, block) }
    }
}

impl From<HostMemory> for BorrowedMemory {
    /// Takes ordinary memory as the target of transfers, or as memory of a ring.
    fn from(memory: HostMemory) -> BorrowedMemory {
        let (address, bytes) = (memory.address(), memory.bytes());
        // SAFETY: the object owns the memory, which is zeroed and does not move with it, and nobody
        // else has the object.
        unsafe { BorrowedMemory::new(address, bytes, memory) }
    }
}

impl BorrowedMemory {
    /// Allocates `bytes` of zeros, on huge pages if there are some, and registers them with the
    /// device of `registrar` for copies in both directions. Unlike a block of `PinnedAlloc`, whose
    /// length is a power of two, the memory has exactly `bytes` bytes.
    ///
    /// # Errors
    /// [`Error`] for 0 bytes, if the host has no space, and as [`Registrar::register`].
    pub fn registered<R: Registrar>(registrar: &Arc<R>, bytes: usize) -> Result<BorrowedMemory, Error> {
        let (span, owner) = allocate(bytes)?;
        let registration = Registration::with_keepalive(registrar, span, Access::WRITE, owner)?;
        // SAFETY: the registration keeps the memory, which nobody else has. It is zeroed.
        Ok(unsafe { BorrowedMemory::new(address_of(span), bytes, registration) })
    }

    /// Allocates as [`registered`](BorrowedMemory::registered) does, and lets `cache` register the
    /// memory. Its bytes count against the [budget](RegistrationCache::budget) of the cache until
    /// this is dropped.
    ///
    /// # Errors
    /// As `registered`; [`Error::Budget`] if the budget has no room for `bytes`.
    pub fn leased<R: Registrar>(
        cache: &Arc<RegistrationCache<R>>,
        bytes: usize,
    ) -> Result<BorrowedMemory, Error> {
        let (span, owner) = allocate(bytes)?;
        // SAFETY: the owner keeps the mapping, and nobody else has it.
        let leased = unsafe { LeasedMemory::new(cache, span, owner) }?;
        // SAFETY: as above, and the memory is zeroed.
        Ok(unsafe { BorrowedMemory::new(address_of(span), bytes, leased) })
    }
}

/// Allocates `bytes` of zeros. Returns their range and their owner.
///
/// # Errors
/// [`Error`] for 0 bytes, or if the host has no space.
fn allocate(bytes: usize) -> Result<(Span, Arc<dyn Send + Sync>), Error> {
    let workers = Workers::of_this_process();
    let (start, owner): (usize, Arc<dyn Send + Sync>) = if is_plenty(bytes, &workers) {
        let memory = PrivateMemory::new(bytes, workers.cores())?;
        (memory.start().addr().get(), Arc::new(memory))
    } else {
        let demand = Demand::new(bytes as u64, Pages::Auto);
        let segment = AnonymousSegment::new("hostbuf:staging", demand, workers)?;
        (segment.start(), Arc::new(segment))
    };
    Ok((Span::new(start, bytes)?, owner))
}

fn address_of(span: Span) -> NonNull<u8> {
    NonNull::new(span.start() as *mut u8).expect("a span begins after the null address")
}

/// Returns whether this process may populate `bytes` itself: no cgroup limits it, or the limit is
/// far.
fn is_plenty(bytes: usize, workers: &Workers) -> bool {
    match workers {
        Workers::Threads(_) => true,
        _ => space::available(&tightest_limit()) / 2 >= bytes as u64,
    }
}

// SAFETY: the caller of `new` guarantees the memory.
unsafe impl Send for BorrowedMemory {}
// SAFETY: a shared reference gives the address only.
unsafe impl Sync for BorrowedMemory {}

// SAFETY: the caller of `new` guarantees the memory.
unsafe impl RingMemory for BorrowedMemory {
    fn address(&self) -> NonNull<u8> {
        self.address
    }

    fn bytes(&self) -> usize {
        self.bytes
    }
}

// SAFETY: the caller of `new` guarantees the memory.
unsafe impl DeviceBuffer for BorrowedMemory {
    fn address(&self) -> u64 {
        self.address.as_ptr() as u64
    }

    fn bytes(&self) -> u64 {
        self.bytes as u64
    }

    fn is_host_memory(&self) -> bool {
        true
    }
}

impl fmt::Debug for BorrowedMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (address, bytes) = (self.address, self.bytes);
        f.debug_struct("BorrowedMemory").field("address", &address).field("bytes", &bytes).finish()
    }
}
