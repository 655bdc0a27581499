//! The registration cache.

#![allow(unsafe_code, reason = "the functions are called by C, with pointers of the caller")]

use std::ffi::{c_int, c_void};
use std::mem::{ManuallyDrop, MaybeUninit};
use std::ptr::null_mut;

use library::Span;
use library::register::{Budget, Device, Lease, MonitorMode, RegistrationCache};
use library::sized_struct::{Output, SizedInput};

use crate::pointers::{input, output, read, struct_output};
use crate::register::{access, hostbuf_device};
use crate::status::{CallError, CallResult, argument, call, hostbuf_status};

/// A registration cache, which registers memory once for many transfers.
pub struct hostbuf_cache {
    cache: RegistrationCache<Device>,
}

/// The source of a cache's reports of changed mappings.
#[allow(dead_code, reason = "the functions take an integer, since the caller's may be invalid")]
#[repr(C)]
#[derive(Clone, Copy)]
pub enum hostbuf_monitor_mode {
    /// The mode in `HOSTBUF_CACHE_MONITOR`, or strict if the variable is not set.
    HOSTBUF_MONITOR_DEFAULT = 0,
    /// The kernel reports changes.
    HOSTBUF_MONITOR_STRICT = 1,
    /// The program calls `hostbuf_cache_invalidate` before it changes a mapping.
    HOSTBUF_MONITOR_EXPLICIT = 2,
    /// The kernel reports changes. Without the monitor no cache is made.
    HOSTBUF_MONITOR_REQUIRED = 3,
}

/// A lease, which keeps a registration alive until `hostbuf_cache_put`. Another thread may put it
/// back. Do not copy it: it must be put back once only.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct hostbuf_lease {
    /// The size of this structure: initialize it with `HOSTBUF_LEASE_INIT`.
    pub struct_size: usize,
    /// Private to hostbuf; all 0 if there is no registration.
    pub held: [u64; 6],
    /// The GPU's address of the first byte of the requested range (CUDA); otherwise 0.
    pub device_address: u64,
    /// The `lkey`, for requests of this process (RDMA); otherwise 0.
    pub local_key: u32,
    /// The `rkey`, for requests of peers (RDMA); otherwise 0.
    pub remote_key: u32,
}

sized_struct!(hostbuf_lease, "HOSTBUF_LEASE_INIT", last: remote_key: u32, min: 8 + 6 * 8);

// SAFETY: numbers.
unsafe impl SizedInput for hostbuf_lease {
    const DEFAULT: hostbuf_lease = hostbuf_lease {
        struct_size: size_of::<hostbuf_lease>(),
        held: [0; 6],
        device_address: 0,
        local_key: 0,
        remote_key: 0,
    };
}

/// Checks the caller's place for a lease and writes that it holds nothing.
///
/// # Safety
/// As [`struct_output`].
unsafe fn empty_lease<'a>(lease: *mut hostbuf_lease) -> CallResult<Output<'a, hostbuf_lease>> {
    // SAFETY: by the contract of this function.
    let mut to = unsafe { struct_output(lease, "lease") }?;
    to.write(&hostbuf_lease::DEFAULT);
    Ok(to)
}

type HeldLease = Lease<'static, Device>;
const _: () =
    assert!(size_of::<HeldLease>() <= size_of::<[u64; 6]>() && align_of::<HeldLease>() <= align_of::<u64>());

impl hostbuf_lease {
    fn of(lease: Lease<'_, Device>) -> hostbuf_lease {
        let key = lease.key();
        let mut held = [0; 6];
        let lease = ManuallyDrop::new(lease);
        // SAFETY: the assertion above proves that a lease fits. The caller puts it back before the
        // cache is closed, as the header demands.
        unsafe {
            held.as_mut_ptr().cast::<Lease<'_, Device>>().copy_from_nonoverlapping(&raw const *lease, 1);
        };
        hostbuf_lease {
            held,
            device_address: key.address,
            local_key: key.lkey,
            remote_key: key.rkey,
            ..hostbuf_lease::DEFAULT
        }
    }

    /// Takes the lease out, if there is one.
    ///
    /// # Safety
    /// `of` made it from a lease of a cache that is still open, and no copy of it was taken before.
    unsafe fn take(&mut self) -> Option<HeldLease> {
        let held = std::mem::take(&mut self.held);
        let mut lease = MaybeUninit::<HeldLease>::uninit();
        // A lease has the address of its cache.
        (held != [0; 6]).then(|| {
            // SAFETY: by the contract of this function, the bytes of one.
            unsafe {
                lease.as_mut_ptr().copy_from_nonoverlapping(held.as_ptr().cast(), 1);
                lease.assume_init()
            }
        })
    }
}

/// The statistics of a cache.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct hostbuf_cache_stats {
    /// The size of this structure: initialize it with `HOSTBUF_CACHE_STATS_INIT`.
    pub struct_size: usize,
    /// Leases of existing registrations.
    pub hits: u64,
    /// Leases that waited for another thread's registration.
    pub coalesced: u64,
    /// Leases that needed a new registration.
    pub misses: u64,
    /// Registrations that ended to make room.
    pub evictions: u64,
    /// Registrations that `invalidate` or `flush` ended.
    pub invalidated: u64,
    /// Registrations that ended because the monitor reported a change of their memory.
    pub changed: u64,
    /// Registrations for their leases only, of memory whose changes are not reported.
    pub not_kept: u64,
    /// Registrations that the device refused.
    pub failures: u64,
    /// Deregistrations that failed.
    pub leaked: u64,
    /// Requests that found the budget exhausted.
    pub over_budget: u64,
    /// The current number of registrations.
    pub registrations: usize,
    /// The current number of registered bytes.
    pub bytes: usize,
    /// The maximum number of simultaneous registrations.
    pub peak_registrations: usize,
    /// The maximum number of registered bytes.
    pub peak_bytes: usize,
}

sized_struct!(hostbuf_cache_stats, "HOSTBUF_CACHE_STATS_INIT", last: peak_bytes: usize);

/// Converts a memory range of the caller.
fn span(start: *const c_void, length: usize) -> CallResult<Span> {
    Ok(Span::new(start as usize, length)?)
}

/// Makes a cache with hard limits: `registrations` at a time, and `bytes` registered bytes. If a
/// limit is 0, the value of `HOSTBUF_CACHE_REGISTRATIONS` or `HOSTBUF_CACHE_BYTES` applies, or its
/// default. `monitor` is one of `hostbuf_monitor_mode`.
// Safety: `device` and `to` are null or valid.
#[unsafe(no_mangle)]
pub extern "C" fn hostbuf_cache_open(
    device: Option<&hostbuf_device>,
    registrations: usize,
    bytes: usize,
    monitor: c_int,
    to: Option<&mut MaybeUninit<*mut hostbuf_cache>>,
) -> hostbuf_status {
    call(|| {
        let to = output(to, "to", null_mut())?;
        let device = input(device, "device")?;
        let mut budget = Budget::new(registrations).bytes(bytes);
        if registrations == 0 || bytes == 0 {
            let usual = Budget::from_environment()?;
            budget.registrations = if registrations == 0 { usual.registrations } else { registrations };
            budget.bytes = if bytes == 0 { usual.bytes } else { bytes };
        }
        let monitor = match monitor {
            0 => MonitorMode::from_environment()?,
            1 => MonitorMode::Strict,
            2 => MonitorMode::Explicit,
            3 => MonitorMode::Required,
            other => {
                return Err(argument(format!(
                    "invalid monitor {other}: expected a value of hostbuf_monitor_mode"
                )));
            }
        };
        let cache = RegistrationCache::new(device.device.clone(), budget, monitor)?;
        *to = Box::into_raw(Box::new(hostbuf_cache { cache }));
        Ok(())
    })
}

/// Closes a cache and ends its registrations. Put all its leases back before. A null cache is
/// ignored.
// Safety: `cache` is a live handle. Neither it nor a lease of it is used again.
#[unsafe(no_mangle)]
pub extern "C" fn hostbuf_cache_close(cache: Option<Box<hostbuf_cache>>) {
    call(|| {
        drop(cache);
        Ok(())
    });
}

/// Writes a lease of a registration of `length` bytes from `start` to `lease`. It registers the
/// memory if the cache has no such registration. Put the lease back with `hostbuf_cache_put` before
/// the cache is closed. This function does not put a lease back that `lease` already contains.
// Safety: the pointers are null or valid; the memory stays mapped until the lease is put back.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hostbuf_cache_get(
    cache: Option<&hostbuf_cache>,
    start: *const c_void,
    length: usize,
    access: c_int,
    lease: *mut hostbuf_lease,
) -> hostbuf_status {
    call(|| {
        // SAFETY: by the contract of this function.
        let mut to = unsafe { empty_lease(lease) }?;
        let cache = input(cache, "cache")?;
        let span = span(start, length)?;
        let found = cache.cache.get(span.start() as *const u8, span.len(), self::access(access)?)?;
        to.write(&hostbuf_lease::of(found));
        Ok(())
    })
}

/// Writes a lease of an existing registration to `lease`, as `hostbuf_cache_get`, but neither
/// registers memory nor waits. Returns `HOSTBUF_NOTHING` if there is no such registration.
// Safety: as `hostbuf_cache_get`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hostbuf_cache_try_get(
    cache: Option<&hostbuf_cache>,
    start: *const c_void,
    length: usize,
    access: c_int,
    lease: *mut hostbuf_lease,
) -> hostbuf_status {
    call(|| {
        // SAFETY: by the contract of this function.
        let mut to = unsafe { empty_lease(lease) }?;
        let cache = input(cache, "cache")?;
        let span = span(start, length)?;
        let found = cache.cache.try_get(span.start() as *const u8, span.len(), self::access(access)?);
        let found = found.ok_or_else(|| CallError::Nothing(format!("{span} is not registered")))?;
        to.write(&hostbuf_lease::of(found));
        Ok(())
    })
}

/// Puts a lease back. An empty lease is ignored.
// Safety: `lease` is null, or a get of a cache that is still open has written it, and no copy of it
// was put back.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hostbuf_cache_put(lease: *mut hostbuf_lease) {
    if lease.is_null() {
        return;
    }
    call(|| {
        // SAFETY: by the contract of this function.
        let (mut held, mut to) = unsafe { (read(lease, "lease")?, struct_output(lease, "lease")?) };
        // SAFETY: as above; the caller's lease no longer holds it.
        let taken = unsafe { held.take() };
        to.write(&held);
        drop(taken);
        Ok(())
    });
}

/// Registers `length` bytes from `start` and exempts the registration from eviction.
// Safety: as `hostbuf_cache_get`.
#[unsafe(no_mangle)]
pub extern "C" fn hostbuf_cache_keep(
    cache: Option<&hostbuf_cache>,
    start: *const c_void,
    length: usize,
    access: c_int,
) -> hostbuf_status {
    call(|| {
        let cache = input(cache, "cache")?;
        let span = span(start, length)?;
        Ok(cache.cache.keep(span.start() as *const u8, span.len(), self::access(access)?)?)
    })
}

/// Ends the registrations of a range whose mapping has changed or will change. A later lease never
/// uses a registration from before.
// Safety: `cache` is null or a live handle.
#[unsafe(no_mangle)]
pub extern "C" fn hostbuf_cache_invalidate(
    cache: Option<&hostbuf_cache>,
    start: *const c_void,
    length: usize,
) -> hostbuf_status {
    call(|| {
        let cache = input(cache, "cache")?;
        Ok(cache.cache.invalidate(span(start, length)?)?)
    })
}

/// Ends all registrations of a cache.
// Safety: `cache` is null or a live handle.
#[unsafe(no_mangle)]
pub extern "C" fn hostbuf_cache_flush(cache: Option<&hostbuf_cache>) -> hostbuf_status {
    call(|| Ok(input(cache, "cache")?.cache.flush()?))
}

/// Writes the statistics of a cache to `to`.
// Safety: `cache` and `to` are null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hostbuf_cache_stat(
    cache: Option<&hostbuf_cache>,
    to: *mut hostbuf_cache_stats,
) -> hostbuf_status {
    call(|| {
        // SAFETY: by the contract of this function.
        let mut to = unsafe { struct_output(to, "to") }?;
        let cache = input(cache, "cache")?;
        let stats = cache.cache.stats();
        to.write(&hostbuf_cache_stats {
            struct_size: size_of::<hostbuf_cache_stats>(),
            hits: stats.hits,
            coalesced: stats.coalesced,
            misses: stats.misses,
            evictions: stats.evictions,
            invalidated: stats.invalidated,
            changed: stats.changed,
            not_kept: stats.unwatchable + stats.unproven + stats.unwatched + stats.busy,
            failures: stats.failures,
            leaked: stats.leaked,
            over_budget: stats.over_budget,
            registrations: stats.registrations,
            bytes: stats.bytes,
            peak_registrations: stats.peak_registrations,
            peak_bytes: stats.peak_bytes,
        });
        Ok(())
    })
}
