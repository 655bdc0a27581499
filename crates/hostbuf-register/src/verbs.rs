//! RDMA devices (InfiniBand, RoCE, iWARP and software devices) through libibverbs. A registration
//! is a memory region (MR).
//!
//! ```text
//!   VerbsHandle (MR) ──> ProtectionDomain: protection domain, context <── Verbs
//! ```
//!
//! Each MR holds a reference to its protection domain, so it is deregistered before the domain is
//! deallocated, and the domain is deallocated before the context is closed.

#![allow(unsafe_code, reason = "libibverbs is called by foreign functions")]

use std::ffi::{CStr, c_void};
use std::fmt;
use std::io;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::Arc;

use ibverbs_sys as ffi;

use crate::error::{Error, Result};
use crate::memory::Memory;
use crate::properties::{Overlap, RegistrarProperties};
use crate::registrar::{Probe, Registrar};
use crate::span::{Access, Span};
use hostbuf_os::fork_guard::ForkGuard;
use hostbuf_os::{kernel, memory};

/// The first kernel that registers shared read-only mappings for reading. Older kernels request
/// write access to the pages even if the device only reads.
const READS_SHARED: (u32, u32) = (6, 2);

/// An open RDMA device with a protection domain of its own. A process may open several devices, or
/// one device several times; the keys of one `Verbs` are not valid for the queue pairs of another.
///
/// The kernel refuses pages without any access (`PROT_NONE`) for writing. For [`Access::READ`] it
/// may accept them, so a range that extends beyond the end of a buffer may be no error.
///
/// A frozen buffer can be registered from Linux 6.2 on. On older kernels, register it with
/// [`Access::READ`] or [`Access::REMOTE_READ`] before it is frozen, and hold the registration; the
/// kernel then does not seal the buffer (`Proof::Weaker`).
///
/// The raw pointers have no type, so that any binding of libibverbs can use them: cast them to its
/// types.
///
/// The kernel charges each registration against the limit of locked memory (`ulimit -l`), even if
/// its pages are registered already.
#[doc(alias = "ibv_reg_mr")]
pub struct Verbs {
    domain: Arc<ProtectionDomain>,
    page: usize,
    /// The longest memory region of the device, in bytes.
    longest: usize,
}

/// A memory region with its keys. Dropping it in the process that made it deregisters the memory.
#[doc(alias = "ibv_mr")]
pub struct VerbsHandle {
    region: NonNull<ffi::ibv_mr>,
    local: u32,
    remote: u32,
    // Declared after the region, so that it is dropped after it.
    domain: Arc<ProtectionDomain>,
}

/// The keys of a memory region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct VerbsKey {
    /// The local key, for work requests of this process.
    pub lkey: u32,
    /// The remote key, for work requests of a peer.
    pub rkey: u32,
}

struct ProtectionDomain {
    name: String,
    context: NonNull<ffi::ibv_context>,
    protection: NonNull<ffi::ibv_pd>,
    fork_guard: ForkGuard,
}

// SAFETY: libibverbs is thread-safe for all its objects, and the pointers are only passed to it.
unsafe impl Send for ProtectionDomain {}
// SAFETY: as above.
unsafe impl Sync for ProtectionDomain {}
// SAFETY: as above; the keys are copies, and only the owner of the handle deregisters the region.
unsafe impl Send for VerbsHandle {}
// SAFETY: as above; a shared reference does not change the region.
unsafe impl Sync for VerbsHandle {}

impl Verbs {
    /// Checks whether there is an RDMA device that this process can open.
    #[must_use]
    pub fn probe() -> Probe {
        let names = match Verbs::devices() {
            Ok(names) if names.is_empty() => return Probe::Missing("no RDMA device".into()),
            Ok(names) => names,
            Err(Error::Os { source, .. }) if source.raw_os_error() == Some(libc::ENOSYS) => {
                return Probe::Missing("the kernel has no RDMA (module ib_uverbs)".into());
            }
            Err(error) => return Probe::Missing(error.to_string()),
        };
        match Verbs::open(None) {
            Ok(_) => Probe::Ready(names.join(", ")),
            Err(error) => Probe::Missing(error.to_string()),
        }
    }

    /// Returns the names of the devices, such as `mlx5_0`.
    ///
    /// # Errors
    /// [`Error::Os`]; its source is `ENOSYS` if the kernel has no RDMA.
    #[doc(alias = "ibv_get_device_list")]
    pub fn devices() -> Result<Vec<String>> {
        Ok(VerbsDevices::new()?.named().map(|(name, _)| name).collect())
    }

    /// Opens the device with the name `device`, or the first device if `device` is `None`.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if there is no device, [`Error::Invalid`] if no device has that name,
    /// [`Error::Os`] if the device cannot be opened.
    #[doc(alias = "ibv_open_device")]
    pub fn open(device: Option<&str>) -> Result<Verbs> {
        let list = VerbsDevices::new().map_err(|error| match error {
            Error::Os { source, .. } if source.raw_os_error() == Some(libc::ENOSYS) => {
                missing("the kernel has no RDMA (module ib_uverbs)")
            }
            other => other,
        })?;
        let Some((name, found)) = list.named().find(|(name, _)| device.is_none_or(|d| d == name)) else {
            let names: Vec<_> = list.named().map(|(name, _)| name).collect();
            return Err(match device {
                Some(device) if !names.is_empty() => {
                    let names = names.join(", ");
                    Error::invalid(format!("no RDMA device is called \"{device}\"; there are {names}"))
                }
                _ => missing("this host has no RDMA device"),
            });
        };
        // SAFETY: the device is in the list, which lives until the end of this function.
        let context = NonNull::new(unsafe { ffi::ibv_open_device(found.as_ptr()) }).ok_or_else(|| {
            Error::os(format!("opening the RDMA device {name}"))(io::Error::last_os_error())
        })?;
        // SAFETY: the context was just opened.
        let Some(protection) = NonNull::new(unsafe { ffi::ibv_alloc_pd(context.as_ptr()) }) else {
            let source = io::Error::last_os_error();
            // SAFETY: as above; nothing was made in the context.
            unsafe { ffi::ibv_close_device(context.as_ptr()) };
            return Err(Error::os(format!("allocating a protection domain on {name}"))(source));
        };
        let domain =
            Arc::new(ProtectionDomain { name, context, protection, fork_guard: ForkGuard::current() });
        let longest = domain.longest_region().unwrap_or(usize::MAX);
        Ok(Verbs { domain, page: memory::page_size() as usize, longest })
    }

    /// Returns the `ibv_context` of the device, for completion queues. It stays open until this and
    /// all its registrations are dropped.
    #[doc(alias = "ibv_context")]
    #[must_use]
    pub fn context(&self) -> NonNull<c_void> {
        self.domain.context.cast()
    }

    /// Returns the `ibv_pd` of all registrations, for queue pairs. Destroy the queue pairs before
    /// this and its registrations are dropped.
    #[doc(alias = "ibv_pd")]
    #[must_use]
    pub fn protection_domain(&self) -> NonNull<c_void> {
        self.domain.protection.cast()
    }

    fn failed(&self, span: Span, access: Access, why: impl Into<String>, source: Option<io::Error>) -> Error {
        Error::Registration { device: self.name(), memory: span.into(), access, why: why.into(), source }
    }
}

impl Registrar for Verbs {
    type Handle = VerbsHandle;
    type Key = VerbsKey;

    fn name(&self) -> String {
        self.domain.name.clone()
    }

    fn properties(&self) -> RegistrarProperties {
        RegistrarProperties::new(Overlap::Free).granularity(self.page).longest(self.longest)
    }

    fn key(&self, handle: &VerbsHandle) -> VerbsKey {
        VerbsKey { lkey: handle.local, rkey: handle.remote }
    }

    fn register(&self, memory: &Memory, access: Access) -> Result<VerbsHandle> {
        // dma-bufs (ibv_reg_dmabuf_mr) stay unsupported until they have been tried on a device.
        let span = memory.require_host(|| self.name())?;
        if !self.domain.fork_guard.is_current() {
            let why = "this process was forked from the one that opened the device: open it here";
            return Err(self.failed(span, access, why, None));
        }
        let pd = self.domain.protection.as_ptr();
        // SAFETY: the domain is alive. The kernel checks the range and returns an error for
        // unmapped memory. The caller allows the device the access `access` to the range.
        let region = unsafe { ffi::ibv_reg_mr(pd, span.start() as *mut _, span.len(), flags(access)) };
        let Some(region) = NonNull::new(region) else {
            let source = io::Error::last_os_error();
            return Err(self.failed(span, access, explanation(&source, access), Some(source)));
        };
        // SAFETY: ibv_reg_mr has filled the region, and nothing changes it.
        let (local, remote) = unsafe { (region.as_ref().lkey, region.as_ref().rkey) };
        Ok(VerbsHandle { region, local, remote, domain: self.domain.clone() })
    }

    fn deregister(&self, memory: &Memory, handle: VerbsHandle) -> Result<()> {
        let span = memory.require_host(|| self.name())?;
        handle.end().map_err(|source| {
            let why = "the memory region cannot be deregistered and stays pinned until the device is closed";
            self.failed(span, Access::READ, why, Some(source))
        })
    }
}

impl fmt::Debug for Verbs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Verbs").field("device", &self.domain.name).finish_non_exhaustive()
    }
}

impl VerbsHandle {
    /// Returns the local key, for work requests of this process.
    #[must_use]
    pub fn lkey(&self) -> u32 {
        self.local
    }

    /// Returns the remote key, for work requests of a peer.
    #[must_use]
    pub fn rkey(&self) -> u32 {
        self.remote
    }

    /// Returns the `ibv_mr`, for direct calls of libibverbs. The handle deregisters it; do not
    /// deregister it by other means.
    #[must_use]
    pub fn as_ptr(&self) -> NonNull<c_void> {
        self.region.cast()
    }

    fn end(self) -> io::Result<()> {
        let mut this = ManuallyDrop::new(self);
        let result = this.deregister();
        // SAFETY: the field is not used again. The domain is dropped after the region.
        unsafe { std::ptr::drop_in_place(&raw mut this.domain) };
        result
    }

    /// Deregisters the memory region. It must be called once only.
    fn deregister(&mut self) -> io::Result<()> {
        if !self.domain.fork_guard.is_current() {
            // The region belongs to the parent, whose keys would become invalid.
            return Ok(());
        }
        // SAFETY: ibv_reg_mr made the region, and it is deregistered only here.
        match unsafe { ffi::ibv_dereg_mr(self.region.as_ptr()) } {
            0 => Ok(()),
            code => Err(io::Error::from_raw_os_error(code)),
        }
    }
}

impl Drop for VerbsHandle {
    fn drop(&mut self) {
        if let Err(error) = self.deregister() {
            tracing::error!(device = %self.domain.name, %error, "cannot deregister a memory region");
        }
    }
}

impl fmt::Debug for VerbsHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("VerbsHandle");
        shown.field("device", &self.domain.name);
        shown.field("lkey", &format_args!("{:#x}", self.local));
        shown.field("rkey", &format_args!("{:#x}", self.remote)).finish_non_exhaustive()
    }
}

impl ProtectionDomain {
    /// Returns the length of the longest memory region of the device, in bytes, if the device
    /// reports it.
    fn longest_region(&self) -> Option<usize> {
        let mut attributes = ffi::ibv_device_attr::default();
        // SAFETY: the context is open, and the call writes the attributes.
        let code = unsafe { ffi::ibv_query_device(self.context.as_ptr(), &raw mut attributes) };
        (code == 0 && attributes.max_mr_size > 0)
            .then(|| usize::try_from(attributes.max_mr_size).unwrap_or(usize::MAX))
    }
}

impl Drop for ProtectionDomain {
    fn drop(&mut self) {
        if !self.fork_guard.is_current() {
            return;
        }
        // SAFETY: every region of hostbuf in this domain holds a reference to it, so none is left.
        // If the user left queue pairs, the call returns an error.
        let code = unsafe { ffi::ibv_dealloc_pd(self.protection.as_ptr()) };
        if code != 0 {
            let error = io::Error::from_raw_os_error(code);
            tracing::error!(device = %self.name, %error, "cannot deallocate a protection domain");
            // Closing would free the context, to which other objects still point.
            return;
        }
        // SAFETY: as above.
        if unsafe { ffi::ibv_close_device(self.context.as_ptr()) } != 0 {
            let error = io::Error::last_os_error();
            tracing::error!(device = %self.name, %error, "cannot close an RDMA device");
        }
    }
}

/// The list of the RDMA devices of this host.
struct VerbsDevices {
    first: NonNull<*mut ffi::ibv_device>,
    count: usize,
}

impl VerbsDevices {
    fn new() -> Result<VerbsDevices> {
        let mut count = 0;
        // SAFETY: the call writes the count, and returns an array of that length or null.
        let first = unsafe { ffi::ibv_get_device_list(&raw mut count) };
        let first = NonNull::new(first)
            .ok_or_else(|| Error::os("listing RDMA devices")(io::Error::last_os_error()))?;
        Ok(VerbsDevices { first, count: usize::try_from(count).unwrap_or(0) })
    }

    fn named(&self) -> impl Iterator<Item = (String, NonNull<ffi::ibv_device>)> {
        // SAFETY: the array has `count` devices, and is freed when this is dropped.
        let devices = unsafe { std::slice::from_raw_parts(self.first.as_ptr(), self.count) };
        devices.iter().filter_map(|&device| {
            let device = NonNull::new(device)?;
            // SAFETY: a device of the list; its name is null or a string that lives as long as the
            // list.
            let name = unsafe {
                let name = ffi::ibv_get_device_name(device.as_ptr());
                (!name.is_null()).then(|| CStr::from_ptr(name))?
            };
            Some((name.to_string_lossy().into_owned(), device))
        })
    }
}

impl Drop for VerbsDevices {
    fn drop(&mut self) {
        // SAFETY: ibv_get_device_list made the list. The context of an open device stays valid.
        unsafe { ffi::ibv_free_device_list(self.first.as_ptr()) };
    }
}

fn missing(why: &str) -> Error {
    Error::Unsupported { what: "RDMA".into(), why: why.into() }
}

/// Returns the `ibv_access_flags` for `access`. The kernel requires local write access for remote
/// writes and atomics; [`Access`] includes it.
fn flags(access: Access) -> i32 {
    let flags = [
        (Access::WRITE, ffi::ibv_access_flags::IBV_ACCESS_LOCAL_WRITE),
        (Access::REMOTE_READ, ffi::ibv_access_flags::IBV_ACCESS_REMOTE_READ),
        (Access::REMOTE_WRITE, ffi::ibv_access_flags::IBV_ACCESS_REMOTE_WRITE),
        (Access::REMOTE_ATOMIC, ffi::ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC),
    ];
    let allowed = flags.into_iter().filter(|(right, _)| access.allows(*right));
    allowed.fold(0, |all, (_, flag)| all | flag.0 as i32)
}

fn explanation(source: &io::Error, access: Access) -> &'static str {
    match source.raw_os_error() {
        Some(libc::EFAULT) if access.writes() => {
            "a part of the range is not mapped, or it is mapped read-only and write access was requested"
        }
        Some(libc::EFAULT) if kernel::version() < READS_SHARED => {
            "a part of the range is not mapped; or it is mapped shared and read-only, as a frozen buffer is, which Linux \
             registers from 6.2 on: register it for reading before it is frozen, and hold the registration"
        }
        Some(libc::EFAULT) => {
            "a part of the range is not mapped; or it is a frozen buffer, which kernels before 6.2 cannot register with RDMA \
             devices"
        }
        Some(libc::ENOMEM) => {
            "the range exceeds the limit of locked memory (`ulimit -l`), which counts every registration, also of the same \
             pages; or the device has no room"
        }
        Some(libc::EINVAL) => "the device does not support this access, this length, or this kind of memory",
        _ => "the device refuses the range",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn access_maps_to_the_flags_of_verbs() {
        assert_eq!(flags(Access::READ), 0);
        assert_eq!(flags(Access::WRITE), 1);
        assert_eq!(flags(Access::REMOTE_WRITE), 1 | 2);
        assert_eq!(flags(Access::REMOTE_READ), 4);
        assert_eq!(flags(Access::REMOTE_ATOMIC), 1 | 8);
        assert_eq!(flags(Access::ALL), 15);
    }

    #[test]
    fn a_missing_device_is_an_error() {
        if Verbs::probe().is_ready() {
            let error = Verbs::open(Some("no such device")).unwrap_err();
            assert!(matches!(error, Error::Invalid { .. }), "{error}");
            return;
        }
        let error = Verbs::open(None).unwrap_err();
        assert!(matches!(error, Error::Unsupported { .. } | Error::Os { .. }), "{error}");
    }
}
