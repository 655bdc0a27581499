//! The registration cache.

use std::ffi::{c_int, c_void};
use std::mem::{ManuallyDrop, MaybeUninit};
use std::ptr::null_mut;

use library::Span;
use library::register::{Budget, Device, Lease, MonitorMode, RegistrationCache};

use crate::register::{access, hostbuf_device, hostbuf_key};
use crate::status::{Outcome, Trouble, argument, call, given, hostbuf_status, place};

/// A registration cache: memory that is sent again and again is registered once.
pub struct hostbuf_cache {
    cache: RegistrationCache<Device>,
}

/// How a cache hears of memory that changes.
#[allow(dead_code, reason = "a caller's number is read as one, since it may be any")]
#[repr(C)]
#[derive(Clone, Copy)]
pub enum hostbuf_monitor {
    /// As `HOSTBUF_CACHE_MONITOR` says; strict without it.
    HOSTBUF_MONITOR_DEFAULT = 0,
    /// The kernel tells.
    HOSTBUF_MONITOR_STRICT = 1,
    /// The program tells, by `hostbuf_cache_invalidate`, before the memory changes.
    HOSTBUF_MONITOR_EXPLICIT = 2,
}

/// A hold on a registration, until it is put back. It may be moved and put back by another thread,
/// but only once: do not copy it.
#[repr(C)]
pub struct hostbuf_lease {
    /// What requests are made with.
    pub key: hostbuf_key,
    /// hostbuf's own; all 0 where nothing is held.
    pub held: [u64; 6],
}

type Held = Lease<'static, Device>;
const _: () = assert!(size_of::<Held>() <= size_of::<[u64; 6]>() && align_of::<Held>() <= align_of::<u64>());

impl hostbuf_lease {
    const NOTHING: hostbuf_lease =
        hostbuf_lease { key: hostbuf_key { device_address: 0, local_key: 0, remote_key: 0 }, held: [0; 6] };

    fn of(lease: Lease<'_, Device>) -> hostbuf_lease {
        let key = lease.key().into();
        let mut held = [0; 6];
        let lease = ManuallyDrop::new(lease);
        // SAFETY: it fits, as was seen above; whoever takes it out again does so before the cache
        // goes, as the header demands.
        unsafe {
            held.as_mut_ptr().cast::<Lease<'_, Device>>().copy_from_nonoverlapping(&raw const *lease, 1);
        };
        hostbuf_lease { key, held }
    }

    /// # Safety
    /// Made by `of`, of a cache that is still there, and taken once.
    unsafe fn take(&mut self) -> Option<Held> {
        let held = std::mem::take(&mut self.held);
        let mut lease = MaybeUninit::<Held>::uninit();
        // A lease has the address of its cache.
        (held != [0; 6]).then(|| {
            // SAFETY: by the contract of this, the bytes of one.
            unsafe {
                lease.as_mut_ptr().copy_from_nonoverlapping(held.as_ptr().cast(), 1);
                lease.assume_init()
            }
        })
    }
}

/// What a cache has done.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct hostbuf_cache_stats {
    /// Leases that needed no registering, that waited for another thread's, and that were
    /// registered for.
    pub hits: u64,
    pub coalesced: u64,
    pub misses: u64,
    /// Ended to make room; since `invalidate` or `flush` said so; since the monitor saw their
    /// memory change.
    pub evictions: u64,
    pub invalidated: u64,
    pub changed: u64,
    /// Registered for their leases only, since nobody could say when that memory changes.
    pub not_kept: u64,
    /// What the device refused, and deregistrations that failed.
    pub failures: u64,
    pub leaked: u64,
    /// Requests that found the budget full.
    pub over_budget: u64,
    /// Registrations and bytes now, and the most at a time.
    pub regions: usize,
    pub bytes: usize,
    pub peak_regions: usize,
    pub peak_bytes: usize,
}

/// A caller's range of memory.
fn span(start: *const c_void, length: usize) -> Outcome<Span> {
    Ok(Span::new(start as usize, length)?)
}

/// Makes a cache of at most `regions` registrations of at most `bytes` bytes together: a hard
/// limit. 0 for either: what `HOSTBUF_CACHE_REGIONS` and `HOSTBUF_CACHE_BYTES` say, or their
/// defaults. `monitor`: one of `hostbuf_monitor`.
// Safety: `device` and `to` are null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hostbuf_cache_open(
    device: *const hostbuf_device,
    regions: usize,
    bytes: usize,
    monitor: c_int,
    to: *mut *mut hostbuf_cache,
) -> hostbuf_status {
    call(|| {
        // SAFETY: by the contract of this.
        let to = unsafe { place(to, "to") }?;
        *to = null_mut();
        // SAFETY: as above.
        let device = unsafe { given(device, "device") }?;
        let mut budget = Budget { regions, bytes };
        if regions == 0 || bytes == 0 {
            let usual = Budget::from_environment()?;
            budget.regions = if regions == 0 { usual.regions } else { regions };
            budget.bytes = if bytes == 0 { usual.bytes } else { bytes };
        }
        let monitor = match monitor {
            0 => MonitorMode::from_environment()?,
            1 => MonitorMode::Strict,
            2 => MonitorMode::Explicit,
            other => return Err(argument(format!("monitor = {other}: one of hostbuf_monitor is meant"))),
        };
        let cache = RegistrationCache::new(device.device.clone(), budget, monitor)?;
        *to = Box::into_raw(Box::new(hostbuf_cache { cache }));
        Ok(())
    })
}

/// Ends a cache and what it has registered. All its leases have been put back before. Null:
/// nothing.
// Safety: `cache` was given out, and neither it nor a lease of it is used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hostbuf_cache_close(cache: *mut hostbuf_cache) {
    if !cache.is_null() {
        // SAFETY: from hostbuf_cache_open(), by the contract of this.
        let cache = unsafe { Box::from_raw(cache) };
        call(|| {
            drop(cache);
            Ok(())
        });
    }
}

/// A hold on a registration of `length` bytes from `start`, made now if there is none. It has to be
/// put back by `hostbuf_cache_put`, before the cache is closed; what `lease` held before is not put
/// back by this.
// Safety: The pointers are null or valid; the memory is mapped for as long as the lease is held.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hostbuf_cache_get(
    cache: *mut hostbuf_cache,
    start: *const c_void,
    length: usize,
    access: c_int,
    lease: *mut hostbuf_lease,
) -> hostbuf_status {
    call(|| {
        // SAFETY: by the contract of this.
        let to = unsafe { place(lease, "lease") }?;
        *to = hostbuf_lease::NOTHING;
        // SAFETY: as above.
        let cache = unsafe { given(cache, "cache") }?;
        let span = span(start, length)?;
        *to = hostbuf_lease::of(cache.cache.get(
            span.start() as *const u8,
            span.len(),
            self::access(access)?,
        )?);
        Ok(())
    })
}

/// The same if nothing has to be registered and nobody waited for; else `HOSTBUF_NOTHING`.
// Safety: As `hostbuf_cache_get`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hostbuf_cache_try_get(
    cache: *mut hostbuf_cache,
    start: *const c_void,
    length: usize,
    access: c_int,
    lease: *mut hostbuf_lease,
) -> hostbuf_status {
    call(|| {
        // SAFETY: by the contract of this.
        let to = unsafe { place(lease, "lease") }?;
        *to = hostbuf_lease::NOTHING;
        // SAFETY: as above.
        let cache = unsafe { given(cache, "cache") }?;
        let span = span(start, length)?;
        let found = cache.cache.try_get(span.start() as *const u8, span.len(), self::access(access)?);
        *to = hostbuf_lease::of(found.ok_or_else(|| Trouble::Nothing(format!("{span} is not registered")))?);
        Ok(())
    })
}

/// Puts a lease back; one that holds nothing is left as it is.
// Safety: `lease` is null or was filled by a get of a cache that is not closed, and is no copy of
// one that was put back.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hostbuf_cache_put(lease: *mut hostbuf_lease) {
    // SAFETY: by the contract of this.
    if let Some(held) = unsafe { lease.as_mut().and_then(|lease| lease.take()) } {
        call(|| {
            drop(held);
            Ok(())
        });
    }
}

/// Registers `length` bytes from `start`, and keeps the registration: it is not ended to make room.
// Safety: As `hostbuf_cache_get`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hostbuf_cache_keep(
    cache: *mut hostbuf_cache,
    start: *const c_void,
    length: usize,
    access: c_int,
) -> hostbuf_status {
    call(|| {
        // SAFETY: by the contract of this.
        let cache = unsafe { given(cache, "cache") }?;
        let span = span(start, length)?;
        Ok(cache.cache.keep(span.start() as *const u8, span.len(), self::access(access)?)?)
    })
}

/// The memory has changed or is about to: no lease taken afterwards is of a registration made
/// before.
// Safety: `cache` is null or was given out.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hostbuf_cache_invalidate(
    cache: *mut hostbuf_cache,
    start: *const c_void,
    length: usize,
) -> hostbuf_status {
    call(|| {
        // SAFETY: by the contract of this.
        let cache = unsafe { given(cache, "cache") }?;
        Ok(cache.cache.invalidate(span(start, length)?)?)
    })
}

/// Invalidates everything.
// Safety: `cache` is null or was given out.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hostbuf_cache_flush(cache: *mut hostbuf_cache) -> hostbuf_status {
    call(|| {
        // SAFETY: by the contract of this.
        Ok(unsafe { given(cache, "cache") }?.cache.flush()?)
    })
}

/// What a cache has done so far.
// Safety: `cache` and `to` are null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hostbuf_cache_stat(
    cache: *const hostbuf_cache,
    to: *mut hostbuf_cache_stats,
) -> hostbuf_status {
    call(|| {
        // SAFETY: by the contract of this.
        let (cache, to) = unsafe { (given(cache, "cache")?, place(to, "to")?) };
        let stats = cache.cache.stats();
        *to = hostbuf_cache_stats {
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
            regions: stats.regions,
            bytes: stats.bytes,
            peak_regions: stats.peak_regions,
            peak_bytes: stats.peak_bytes,
        };
        Ok(())
    })
}
