//! Registration of host memory with a GPU through CUDA's driver, which is loaded at run time.
//!
//! The driver refuses a range that overlaps a registered one, and a copy that spans two
//! registrations. It is reported to fail permanently on one registration of 512 GiB or more, so
//! longer ranges are registered in chunks; [`CudaHandle::pieces`] splits a copy at their
//! boundaries.

#![allow(unsafe_code, reason = "the driver is called by foreign functions")]

mod retry_lock;

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::io;
use std::ptr::null_mut;

use cudarc::driver::sys::{self, CUresult as Known};

use crate::error::{Error, Result};
use crate::memory::Memory;
use crate::properties::{Overlap, RegistrarProperties};
use crate::registrar::{Probe, Registrar};
use crate::span::{Access, Span};
use hostbuf_cuda::{Code, Driver};
use hostbuf_os::fork_guard::ForkGuard;
use hostbuf_os::maps::{self, RangeAccess};
use hostbuf_os::{memory, process};

/// The longest registration requested from the driver, in bytes.
const LONGEST: usize = 64 << 30;
/// The alignment of chunk boundaries, in bytes, so that no page of 2 MiB belongs to two chunks.
const CUT: usize = 2 << 20;
/// The message for a driver whose attribute is 0.
const NOT_FROZEN: &str = "this driver cannot register read-only memory, such as a frozen buffer";

/// A registrar of host memory with CUDA: the GPUs of this process copy from and to it at full
/// speed, and kernels may use it.
///
/// It holds the primary context of one device, which CUDA's runtime uses too, as long as it lives.
/// Registrations are portable: they are valid in all contexts of the process. So one registrar is
/// enough for all GPUs, and two registrars refuse each other's ranges.
///
/// Memory that is mapped read-only, such as a frozen buffer, can be registered with
/// [`Access::READ`] if the driver supports it
/// ([`registers_read_only`](CudaHost::registers_read_only)). The GPU can then only copy from it.
///
/// If the driver refuses shared memory, the processes of a host retry one after another: some
/// drivers refuse pages that another process is registering.
///
/// A failed kernel (for example an illegal address) breaks the context permanently, and all
/// operations then fail with its error. Only a new process helps.
pub struct CudaHost {
    driver: &'static Driver,
    ordinal: u32,
    device: sys::CUdevice,
    context: sys::CUcontext,
    page: usize,
    fork_guard: ForkGuard,
}

// SAFETY: the context is a handle of the driver, which every thread may use.
unsafe impl Send for CudaHost {}
// SAFETY: as above; no field changes.
unsafe impl Sync for CudaHost {}

/// A part of a registration; one copy must lie within one piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CudaChunk {
    /// The address range in this process.
    pub host: Span,
    /// The GPU's address of the first byte, which is the same on all current 64-bit systems.
    pub device: u64,
}

/// The handle of a registered range.
#[derive(Debug)]
pub struct CudaHandle {
    chunks: Vec<CudaChunk>,
    access: Access,
}

impl CudaHandle {
    /// Returns the chunks in the order of their addresses. There is one, unless the range is longer
    /// than 64 GiB.
    #[must_use]
    pub fn chunks(&self) -> &[CudaChunk] {
        &self.chunks
    }

    /// Returns the GPU's address of the byte at `address` of this process, or `None` if this handle
    /// does not cover it.
    #[must_use]
    pub fn device_address(&self, address: usize) -> Option<u64> {
        let behind = self.chunks.partition_point(|chunk| chunk.host.start() <= address);
        let chunk = self.chunks[..behind].last().filter(|chunk| address < chunk.host.end())?;
        Some(chunk.device + (address - chunk.host.start()) as u64)
    }

    /// Splits `span` into pieces that can each be copied at once, with the GPU's address of each.
    /// Parts that this handle does not cover are left out.
    pub fn pieces(&self, span: Span) -> impl Iterator<Item = CudaChunk> + '_ {
        self.chunks.iter().filter_map(move |chunk| {
            let start = span.start().max(chunk.host.start());
            let end = span.end().min(chunk.host.end());
            let host = Span::new(start, end.checked_sub(start)?).ok()?;
            Some(CudaChunk { host, device: chunk.device + (start - chunk.host.start()) as u64 })
        })
    }
}

/// A context that is current in this thread. Dropping this restores the caller's context.
struct CurrentContext(&'static Driver);

impl CurrentContext {
    fn of(driver: &'static Driver, context: sys::CUcontext) -> std::result::Result<CurrentContext, Code> {
        // SAFETY: the context is retained as long as its owner lives.
        driver.check(unsafe { (driver.push)(context) }).map(|()| CurrentContext(driver))
    }
}

impl Drop for CurrentContext {
    fn drop(&mut self) {
        let (driver, mut popped) = (self.0, null_mut());
        // SAFETY: pops the context that `of` has pushed in this thread; calls in between push and
        // pop in pairs.
        if let Err(code) = driver.check(unsafe { (driver.pop)(&raw mut popped) }) {
            tracing::error!("{}", driver.explain("cuCtxPopCurrent", code));
        }
    }
}

/// Splits `span` into parts of at most `longest` bytes, at multiples of `cut`, which does not
/// exceed `longest`.
fn parts(span: Span, longest: usize, cut: usize) -> Vec<Span> {
    let mut parts = Vec::with_capacity(span.len() / longest + 1);
    let mut at = span.start();
    while at < span.end() {
        let end = match at.checked_add(longest) {
            Some(end) if end < span.end() => end / cut * cut,
            _ => span.end(),
        };
        parts.extend(Span::new(at, end - at));
        at = end;
    }
    parts
}

impl CudaHost {
    /// Checks whether there is a driver and a GPU, without making a context.
    #[must_use]
    pub fn probe() -> Probe {
        let (driver, count) = match Driver::find() {
            Ok(found) => found,
            Err(why) => return Probe::Missing(why),
        };
        let mut version = 0;
        // SAFETY: `version` is a local variable.
        let known = driver.check(unsafe { (driver.version)(&raw mut version) }).is_ok();
        let version =
            if known { format!("CUDA {}.{}", version / 1000, version % 1000 / 10) } else { "CUDA".into() };
        let mut text = [0 as c_char; 128];
        // SAFETY: there is a device 0; `text` has the length that is passed, and one byte more.
        let named = unsafe { (driver.device_name)(text.as_mut_ptr(), text.len() as c_int - 1, 0) };
        // SAFETY: the last byte is always 0.
        let device = unsafe { CStr::from_ptr(text.as_ptr()) }.to_string_lossy();
        let device = if driver.check(named).is_ok() { device } else { "a GPU without a name".into() };
        let more = if count > 1 { format!(" and {} more", count - 1) } else { String::new() };
        let mut first = 0;
        // SAFETY: there is a device 0, and `first` is a local variable.
        let found = driver.check(unsafe { (driver.device)(&raw mut first, 0) }).is_ok();
        let refuses = found && driver.registers_read_only(first) == Some(false);
        let lacks = if refuses { format!("; {NOT_FROZEN}") } else { String::new() };
        Probe::Ready(format!("{version}, {device}{more}{lacks}"))
    }

    /// Returns whether the driver can register memory that is mapped read-only, such as a frozen
    /// buffer (`CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED`). Returns true if the driver
    /// does not know the attribute.
    #[doc(alias = "CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED")]
    #[must_use]
    pub fn registers_read_only(&self) -> bool {
        self.driver.registers_read_only(self.device) != Some(false)
    }

    /// Makes a registrar for the device with this number in CUDA's order (CUDA_VISIBLE_DEVICES).
    ///
    /// # Errors
    /// [`Error::Unsupported`], with the reason and the remedy, if there is no driver or no such
    /// device, or if the device provides no context.
    pub fn new(ordinal: u32) -> Result<CudaHost> {
        let unsupported =
            |why| Error::Unsupported { what: format!("registering memory with GPU {ordinal}"), why };
        let (driver, count) = Driver::find().map_err(unsupported)?;
        let refused = |doing, code| unsupported(driver.explain(doing, code));
        let number = match c_int::try_from(ordinal) {
            Ok(number) if number < count => number,
            _ => {
                let hint = "counted from 0; see nvidia-smi and CUDA_VISIBLE_DEVICES";
                return Err(unsupported(format!("{count} are visible, {hint}")));
            }
        };
        let mut device = 0;
        // SAFETY: the device exists, and `device` is a local variable.
        let found = unsafe { (driver.device)(&raw mut device, number) };
        driver.check(found).map_err(|code| refused("cuDeviceGet", code))?;
        let mut context = null_mut();
        // SAFETY: as above; dropping the registrar releases the context.
        let retained = unsafe { (driver.retain)(&raw mut context, device) };
        driver.check(retained).map_err(|code| refused("cuDevicePrimaryCtxRetain", code))?;
        let page = memory::page_size() as usize;
        Ok(CudaHost { driver, ordinal, device, context, page, fork_guard: ForkGuard::current() })
    }

    fn refused(&self, span: Span, access: Access, why: String, errno: Option<i32>) -> Error {
        let source = errno.map(io::Error::from_raw_os_error);
        Error::Registration { device: self.name(), memory: span.into(), access, why, source }
    }

    fn failed(&self, span: Span, access: Access, doing: &str, code: Code) -> Error {
        let errno = code.is(Known::CUDA_ERROR_OUT_OF_MEMORY).then_some(libc::ENOMEM);
        self.refused(span, access, self.driver.explain(doing, code), errno)
    }

    /// Returns the message for read-only memory that the driver cannot register: the reason and the
    /// alternatives.
    fn not_frozen(&self) -> String {
        format!(
            "{NOT_FROZEN} (GPU {} on {}: CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED is 0). Leave the buffer unfrozen \
             and register it for reading, copy from registered memory (PinnedAlloc), or install a driver whose attribute is 1 \
             (docs/gpu.md). Copies from unregistered memory work, but are slower",
            self.ordinal,
            process::host_name()
        )
    }

    /// Registers all of `span` in chunks, or nothing.
    fn pin_all(
        &self,
        span: Span,
        flags: c_uint,
    ) -> std::result::Result<Vec<CudaChunk>, (&'static str, Code)> {
        let mut chunks = Vec::new();
        for part in parts(span, LONGEST, CUT) {
            match self.pin(part, flags) {
                Ok(chunk) => chunks.push(chunk),
                Err(failure) => {
                    self.undo(&chunks);
                    return Err(failure);
                }
            }
        }
        Ok(chunks)
    }

    /// Registers one chunk, or nothing.
    fn pin(&self, host: Span, flags: c_uint) -> std::result::Result<CudaChunk, (&'static str, Code)> {
        let (driver, start) = (self.driver, host.start() as *mut c_void);
        // SAFETY: the driver pins the pages and changes no content; it returns an error for
        // unmapped memory.
        let registered = unsafe { (driver.register)(start, host.len(), flags) };
        driver.check(registered).map_err(|code| ("cuMemHostRegister", code))?;
        let mut device = 0;
        // SAFETY: the range was just registered for devices (DEVICEMAP).
        match driver.check(unsafe { (driver.device_pointer)(&raw mut device, start, 0) }) {
            Ok(()) => Ok(CudaChunk { host, device }),
            Err(code) => {
                self.undo(&[CudaChunk { host, device }]);
                Err(("cuMemHostGetDevicePointer", code))
            }
        }
    }

    /// Ends the registrations of a call that failed part-way.
    fn undo(&self, chunks: &[CudaChunk]) {
        for chunk in chunks {
            if let Err(code) = self.unpin(chunk) {
                let why = self.driver.explain("cuMemHostUnregister", code);
                tracing::error!("{} stays registered: {why}", chunk.host);
            }
        }
    }

    fn unpin(&self, chunk: &CudaChunk) -> std::result::Result<(), Code> {
        // SAFETY: the driver returns an error if no registration begins at this address.
        match self.driver.check(unsafe { (self.driver.unregister)(chunk.host.start() as *mut c_void) }) {
            // The driver has shut down at the exit of the process, with all its registrations.
            Err(code) if code.is(Known::CUDA_ERROR_DEINITIALIZED) => Ok(()),
            result => result,
        }
    }
}

impl Registrar for CudaHost {
    type Handle = CudaHandle;
    /// The GPU's address of the first byte of the registered range. In a range of more than 64 GiB
    /// it is valid for the first 64 GiB only; [`CudaHandle::device_address`] returns the others.
    type Key = u64;

    fn name(&self) -> String {
        format!("cuda {}", self.ordinal)
    }

    fn stat_name(&self) -> String {
        if self.registers_read_only() { self.name() } else { format!("{} (no read-only)", self.name()) }
    }

    fn properties(&self) -> RegistrarProperties {
        RegistrarProperties::new(Overlap::Refused).granularity(self.page)
    }

    fn key(&self, handle: &CudaHandle) -> u64 {
        handle.chunks.first().map_or(0, |chunk| chunk.device)
    }

    fn register(&self, memory: &Memory, access: Access) -> Result<CudaHandle> {
        let span = memory.require_host(|| self.name())?;
        if !self.fork_guard.is_current() {
            let why = "CUDA does not work in a forked child: make a CudaHost in a process whose parent has not used CUDA before the fork";
            return Err(self.refused(span, access, why.into(), None));
        }
        let _current = CurrentContext::of(self.driver, self.context)
            .map_err(|code| self.failed(span, access, "cuCtxPushCurrent", code))?;
        let flags = sys::CU_MEMHOSTREGISTER_PORTABLE | sys::CU_MEMHOSTREGISTER_DEVICEMAP;
        let mut pinned = self.pin_all(span, flags);
        // Looking up the mapping costs more than registering a page, so it is done only if the
        // driver refuses.
        if matches!(pinned, Err((_, code)) if code.may_pass()) {
            // Without /proc, the driver detects read-only memory itself.
            let flags = match maps::range_access(span.start(), span.end()).unwrap_or(RangeAccess::Writable) {
                RangeAccess::Writable => flags,
                // The driver needs a flag for memory that is mapped read-only.
                RangeAccess::ReadOnly if !access.writes() => {
                    pinned = self.pin_all(span, flags | sys::CU_MEMHOSTREGISTER_READ_ONLY);
                    if pinned.is_err() && !self.registers_read_only() {
                        return Err(self.refused(span, access, self.not_frozen(), None));
                    }
                    flags | sys::CU_MEMHOSTREGISTER_READ_ONLY
                }
                RangeAccess::ReadOnly => {
                    let why = "it is mapped read-only: request access for reading only".into();
                    return Err(self.refused(span, access, why, Some(libc::EACCES)));
                }
                RangeAccess::Hole(at) => {
                    let why = format!("nothing is mapped at {at:#x}, or it may not be read");
                    return Err(self.refused(span, access, why, Some(libc::EFAULT)));
                }
            };
            if matches!(pinned, Err((_, code)) if code.may_pass()) && retry_lock::is_shared(span) {
                pinned = retry_lock::retry(|| self.pin_all(span, flags), |(_, code)| code.may_pass());
            }
        }
        match pinned {
            Ok(chunks) => Ok(CudaHandle { chunks, access }),
            Err((doing, code)) => Err(self.failed(span, access, doing, code)),
        }
    }

    fn deregister(&self, memory: &Memory, handle: CudaHandle) -> Result<()> {
        let span = memory.require_host(|| self.name())?;
        let failed = |doing, code| self.failed(span, handle.access, doing, code);
        let _current = match CurrentContext::of(self.driver, self.context) {
            Ok(current) => current,
            // As in `unpin`.
            Err(code) if code.is(Known::CUDA_ERROR_DEINITIALIZED) => return Ok(()),
            Err(code) => return Err(failed("cuCtxPushCurrent", code)),
        };
        let mut result = Ok(());
        for chunk in &handle.chunks {
            if let Err(code) = self.unpin(chunk) {
                result = result.and(Err(failed("cuMemHostUnregister", code)));
            }
        }
        result
    }
}

impl Drop for CudaHost {
    fn drop(&mut self) {
        if !self.fork_guard.is_current() {
            return;
        }
        // SAFETY: `new` has retained the context, and it is released once.
        match self.driver.check(unsafe { (self.driver.release)(self.device) }) {
            Err(code) if !code.is(Known::CUDA_ERROR_DEINITIALIZED) => {
                tracing::error!("{}", self.driver.explain("cuDevicePrimaryCtxRelease", code));
            }
            _ => {}
        }
    }
}

impl std::fmt::Debug for CudaHost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CudaHost").field("ordinal", &self.ordinal).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(start: usize, length: usize) -> Span {
        Span::new(start, length).unwrap()
    }

    #[test]
    fn only_long_ranges_are_split() {
        assert_eq!(parts(span(0x1001, 5), 1 << 20, 4096), [span(0x1001, 5)]);
        assert_eq!(parts(span(0x1000, 0x4000), 0x4000, 0x1000), [span(0x1000, 0x4000)]);
        let cut = [span(0x1801, 0x37ff), span(0x5000, 0x4000), span(0x9000, 1)];
        assert_eq!(parts(span(0x1801, 0x7800), 0x4000, 0x1000), cut);
    }

    #[test]
    fn a_handle_returns_the_device_address_of_each_byte() {
        let chunk = |start, length, device| CudaChunk { host: span(start, length), device };
        let chunks = vec![chunk(0x1000, 0x1000, 0x9000), chunk(0x2000, 0x10, 0x5000)];
        let handle = CudaHandle { chunks, access: Access::READ };
        let seen = [0xfff, 0x1000, 0x1fff, 0x2000, 0x200f, 0x2010].map(|at| handle.device_address(at));
        assert_eq!(seen, [None, Some(0x9000), Some(0x9fff), Some(0x5000), Some(0x500f), None]);
        let pieces: Vec<_> = handle.pieces(span(0x1ff0, 0x18)).collect();
        assert_eq!(pieces, [chunk(0x1ff0, 0x10, 0x9ff0), chunk(0x2000, 8, 0x5000)]);
        assert_eq!(handle.pieces(span(0x3000, 8)).count(), 0);
    }

    #[test]
    fn a_missing_driver_is_an_error_with_its_reason() {
        match CudaHost::probe() {
            Probe::Ready(what) => assert!(what.starts_with("CUDA")),
            Probe::Missing(why) => {
                assert!(why.contains("libcuda") || why.contains("GPU") || why.contains("CUDA"), "{why}");
                assert!(matches!(CudaHost::new(0), Err(Error::Unsupported { .. })));
            }
        }
        assert!(matches!(CudaHost::new(u32::MAX), Err(Error::Unsupported { .. })));
    }
}
