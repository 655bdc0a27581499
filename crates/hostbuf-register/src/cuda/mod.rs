//! Registration of host memory with a GPU through CUDA's driver, which is loaded at run time.
//!
//! The driver refuses a range that overlaps a registered one, and a copy that spans two
//! registrations. It is reported to fail permanently on one registration of 512 GiB or more, so
//! longer ranges are registered in chunks; [`CudaHandle::pieces`] splits a copy at their
//! boundaries.

mod page_locked;
mod retry_lock;

use std::io;

use crate::error::{Error, Result};
use crate::memory::Memory;
use crate::properties::{Overlap, RegistrarProperties};
use crate::registrar::{Probe, Registrar};
use crate::span::{Access, Span};
use hostbuf_cuda::{
    CudaCode, CudaContext, CudaError, CudaGpu, CurrentContext, Driver, GpuFeature, HostAccess,
};
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
    context: CudaContext,
    page: usize,
}

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
        let gpus = match Driver::find().and_then(Driver::gpus) {
            Ok(gpus) => gpus,
            Err(error) => return Probe::Missing(error.without_host()),
        };
        let version = gpus.first().and_then(|gpu| gpu.driver().version().ok());
        let version = version.map_or("CUDA".into(), |(major, minor)| format!("CUDA {major}.{minor}"));
        let device = gpus.first().and_then(|gpu| gpu.name().ok()).unwrap_or("a GPU without a name".into());
        let more = if gpus.len() > 1 { format!(" and {} more", gpus.len() - 1) } else { String::new() };
        let refuses = gpus.first().is_some_and(|gpu| !registers_read_only(gpu));
        let lacks = if refuses { format!("; {NOT_FROZEN}") } else { String::new() };
        Probe::Ready(format!("{version}, {device}{more}{lacks}"))
    }

    /// Returns whether the driver can register memory that is mapped read-only, such as a frozen
    /// buffer (`CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED`). Returns true if the driver
    /// does not know the attribute.
    #[doc(alias = "CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED")]
    #[must_use]
    pub fn registers_read_only(&self) -> bool {
        registers_read_only(self.context.gpu())
    }

    /// Makes a registrar for the device with this number in CUDA's order (CUDA_VISIBLE_DEVICES).
    ///
    /// # Errors
    /// [`Error::Unsupported`], with the reason and the remedy, if there is no driver or no such
    /// device, or if the device provides no context.
    pub fn new(ordinal: u32) -> Result<CudaHost> {
        let context = Driver::find()
            .and_then(|driver| driver.gpu(ordinal))
            .and_then(|gpu| CudaContext::retain(&gpu))
            .map_err(|error| Error::Unsupported {
                what: format!("registering memory with GPU {ordinal}"),
                why: error.without_host(),
            })?;
        Ok(CudaHost { context, page: memory::page_size() as usize })
    }

    fn refused(&self, span: Span, access: Access, why: String, errno: Option<i32>) -> Error {
        let source = errno.map(io::Error::from_raw_os_error);
        Error::Registration { device: self.name(), memory: span.into(), access, why, source }
    }

    fn failed(&self, span: Span, access: Access, error: &CudaError) -> Error {
        let errno = (error.code() == Some(CudaCode::OUT_OF_MEMORY)).then_some(libc::ENOMEM);
        self.refused(span, access, error.without_host(), errno)
    }

    /// Returns the message for read-only memory that the driver cannot register: the reason and the
    /// alternatives.
    fn not_frozen(&self) -> String {
        format!(
            "{NOT_FROZEN} (GPU {} on {}: CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED is 0). Leave the buffer unfrozen \
             and register it for reading, copy from registered memory (PinnedAlloc), or install a driver whose attribute is 1 \
             (docs/gpu.md). Copies from unregistered memory work, but are slower",
            self.context.gpu().ordinal(),
            process::host_name()
        )
    }
}

/// Returns whether the driver can register memory that is mapped read-only, or does not know.
fn registers_read_only(gpu: &CudaGpu) -> bool {
    gpu.reports(GpuFeature::ReadOnlyRegistration) != Some(false)
}

/// Returns whether a retry may succeed where the driver has refused.
fn is_retryable(error: &CudaError) -> bool {
    error.code().is_some_and(CudaCode::is_retryable)
}

/// Registers all of `span` in chunks, or nothing.
fn pin_all(
    current: &CurrentContext<'_>,
    span: Span,
    access: HostAccess,
) -> std::result::Result<Vec<CudaChunk>, CudaError> {
    let mut chunks: Vec<CudaChunk> = Vec::new();
    for host in parts(span, LONGEST, CUT) {
        match current.register_host(host.start()..host.end(), access) {
            Ok(device) => chunks.push(CudaChunk { host, device }),
            Err(error) => {
                for chunk in &chunks {
                    if let Err(error) = current.unregister_host(chunk.host.start()) {
                        tracing::error!("{} stays registered: {error}", chunk.host);
                    }
                }
                return Err(error);
            }
        }
    }
    Ok(chunks)
}

impl Registrar for CudaHost {
    type Handle = CudaHandle;
    /// The GPU's address of the first byte of the registered range. In a range of more than 64 GiB
    /// it is valid for the first 64 GiB only; [`CudaHandle::device_address`] returns the others.
    type Key = u64;

    fn name(&self) -> String {
        format!("cuda {}", self.context.gpu().ordinal())
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
        if self.context.is_inherited() {
            let why = "CUDA does not work in a forked child: make a CudaHost in a process whose parent has not used CUDA before the fork";
            return Err(self.refused(span, access, why.into(), None));
        }
        let current = self.context.make_current().map_err(|error| self.failed(span, access, &error))?;
        let mut pinned = pin_all(&current, span, HostAccess::ReadWrite);
        // Looking up the mapping costs more than registering a page, so it is done only if the
        // driver refuses.
        if pinned.as_ref().is_err_and(is_retryable) {
            // Without /proc, the driver detects read-only memory itself.
            let host_access =
                match maps::range_access(span.start(), span.end()).unwrap_or(RangeAccess::Writable) {
                    RangeAccess::Writable => HostAccess::ReadWrite,
                    // The driver needs a flag for memory that is mapped read-only.
                    RangeAccess::ReadOnly if !access.writes() => {
                        pinned = pin_all(&current, span, HostAccess::ReadOnly);
                        if pinned.is_err() && !self.registers_read_only() {
                            return Err(self.refused(span, access, self.not_frozen(), None));
                        }
                        HostAccess::ReadOnly
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
            if pinned.as_ref().is_err_and(is_retryable) && retry_lock::is_shared(span) {
                pinned = retry_lock::retry(|| pin_all(&current, span, host_access), is_retryable);
            }
        }
        match pinned {
            Ok(chunks) => Ok(CudaHandle { chunks, access }),
            Err(error) => Err(self.failed(span, access, &error)),
        }
    }

    fn deregister(&self, memory: &Memory, handle: CudaHandle) -> Result<()> {
        let span = memory.require_host(|| self.name())?;
        let failed = |error: &CudaError| self.failed(span, handle.access, error);
        let current = match self.context.make_current() {
            Ok(current) => current,
            // The registrations have ended with the context.
            Err(error) if error.is_context_gone() => return Ok(()),
            Err(error) => return Err(failed(&error)),
        };
        let mut result = Ok(());
        for chunk in &handle.chunks {
            if let Err(error) = current.unregister_host(chunk.host.start()) {
                result = result.and(Err(failed(&error)));
            }
        }
        result
    }
}

impl std::fmt::Debug for CudaHost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CudaHost").field("ordinal", &self.context.gpu().ordinal()).finish_non_exhaustive()
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
