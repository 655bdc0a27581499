//! RDMA devices by verbs: InfiniBand, RoCE, iWARP, and their likes in software. What is called a
//! registration elsewhere is a memory region (MR) here.
//!
//! ```text
//!   VerbsHandle (MR) ──> Domain: protection domain, context <── Verbs
//! ```
//!
//! Whoever holds an MR holds the domain, so it always ends before its protection domain, and that
//! before the context.

#![allow(unsafe_code)]

use std::ffi::CStr;
use std::fmt;
use std::io;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::Arc;

use ibverbs_sys as ffi;

use crate::error::{Error, Result};
use crate::registrar::{Overlap, Probe, Registrar};
use crate::span::{Access, Span};
use hostbuf_os::fork_guard::ForkGuard;
use hostbuf_os::{kernel, memory};

/// Since which kernel memory that is mapped shared and read-only can be registered for reading.
/// Before, the kernel asked for pages to write also where nobody was to write.
const READS_SHARED: (u32, u32) = (6, 2);

/// One RDMA device, opened, with a protection domain of its own. Several may be opened, also of one
/// device: keys of one mean nothing to the queue pairs of another.
///
/// Pages without any access (`PROT_NONE`) are refused for writing; for [`Access::READ`] the kernel
/// may take them, so that a range which runs over the end of a buffer is no error there.
///
/// A frozen buffer can be registered from Linux 6.2 on. On older ones register it before it is
/// frozen, with [`Access::READ`] or [`Access::REMOTE_READ`], and hold the registration; then the
/// kernel does not seal it ([`Proof::Weaker`](crate::Proof::Weaker)).
///
/// The pointers that it gives are those of the crate `ibverbs-sys`, 0.3.
///
/// Each registration is charged against the limit of locked memory (`ulimit -l`), also one of pages
/// that are registered already.
pub struct Verbs {
    domain: Arc<Domain>,
    page: usize,
}

/// What a device gave for a range: its keys. It ends the registration when it is dropped, in the
/// process that made it.
pub struct VerbsHandle {
    region: NonNull<ffi::ibv_mr>,
    local: u32,
    remote: u32,
    // Behind the region: fields end in this order.
    domain: Arc<Domain>,
}

/// What requests are made with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VerbsKey {
    /// In this process's own requests.
    pub lkey: u32,
    /// In a peer's.
    pub rkey: u32,
}

struct Domain {
    name: String,
    context: NonNull<ffi::ibv_context>,
    protection: NonNull<ffi::ibv_pd>,
    fork_guard: ForkGuard,
}

// SAFETY: the verbs may be called by any thread, and by several at a time, for all that they make;
// the pointers are only given to them.
unsafe impl Send for Domain {}
// SAFETY: as above.
unsafe impl Sync for Domain {}
// SAFETY: as above; the keys are copied out, and the region is ended once, by whoever owns this.
unsafe impl Send for VerbsHandle {}
// SAFETY: as above; by reference nothing of the region is changed.
unsafe impl Sync for VerbsHandle {}

impl Verbs {
    /// Whether there is an RDMA device that this process can open.
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

    /// The names of the devices: `mlx5_0`.
    ///
    /// # Errors
    /// [`Error::Os`]; its source is ENOSYS where the kernel has no RDMA.
    pub fn devices() -> Result<Vec<String>> {
        Ok(DeviceList::new()?.named().map(|(name, _)| name).collect())
    }

    /// Opens the device of that name, the first one without.
    ///
    /// # Errors
    /// [`Error::Unsupported`] where there is no device, [`Error::Invalid`] when none has that name,
    /// [`Error::Os`] when it cannot be opened.
    pub fn open(device: Option<&str>) -> Result<Verbs> {
        let list = DeviceList::new().map_err(|error| match error {
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
                _ => missing("there is none on this host"),
            });
        };
        // SAFETY: from the list, which lives until the end of this function.
        let context = NonNull::new(unsafe { ffi::ibv_open_device(found.as_ptr()) }).ok_or_else(|| {
            Error::os(format!("opening the RDMA device {name}"))(io::Error::last_os_error())
        })?;
        // SAFETY: the context just made.
        let Some(protection) = NonNull::new(unsafe { ffi::ibv_alloc_pd(context.as_ptr()) }) else {
            let source = io::Error::last_os_error();
            // SAFETY: as above; nothing else has come to belong to it.
            unsafe { ffi::ibv_close_device(context.as_ptr()) };
            return Err(Error::os(format!("making a protection domain on {name}"))(source));
        };
        let domain = Arc::new(Domain { name, context, protection, fork_guard: ForkGuard::current() });
        Ok(Verbs { domain, page: memory::page_size() as usize })
    }

    /// The `ibv_context` of the device, for completion queues. It ends with this and with all that
    /// is registered by it.
    #[must_use]
    pub fn context(&self) -> NonNull<ffi::ibv_context> {
        self.domain.context
    }

    /// The `ibv_pd` in which everything is registered, for queue pairs: they have to end before it
    /// does.
    #[must_use]
    pub fn protection_domain(&self) -> NonNull<ffi::ibv_pd> {
        self.domain.protection
    }

    fn failed(&self, span: Span, access: Access, why: impl Into<String>, source: Option<io::Error>) -> Error {
        Error::Registration { device: self.name(), span, access, why: why.into(), source }
    }
}

impl Registrar for Verbs {
    type Handle = VerbsHandle;
    type Key = VerbsKey;

    fn name(&self) -> String {
        self.domain.name.clone()
    }

    fn overlap(&self) -> Overlap {
        Overlap::Free
    }

    fn footprint(&self, span: Span) -> usize {
        span.pages(self.page).len()
    }

    fn key(&self, handle: &VerbsHandle) -> VerbsKey {
        VerbsKey { lkey: handle.local, rkey: handle.remote }
    }

    fn register(&self, span: Span, access: Access) -> Result<VerbsHandle> {
        if !self.domain.fork_guard.is_current() {
            let why = "this process was forked from the one that opened the device: open it here";
            return Err(self.failed(span, access, why, None));
        }
        let pd = self.domain.protection.as_ptr();
        // SAFETY: the domain lives. The kernel looks at the range itself: what is not mapped is an
        // error. What stands there may be written by the device as `access` says, which whoever
        // registers it answers for.
        let region = unsafe { ffi::ibv_reg_mr(pd, span.start() as *mut _, span.len(), flags(access)) };
        let Some(region) = NonNull::new(region) else {
            let source = io::Error::last_os_error();
            return Err(self.failed(span, access, explanation(&source, access), Some(source)));
        };
        // SAFETY: the verbs have filled it, and change it no more.
        let (local, remote) = unsafe { (region.as_ref().lkey, region.as_ref().rkey) };
        Ok(VerbsHandle { region, local, remote, domain: self.domain.clone() })
    }

    fn deregister(&self, span: Span, handle: VerbsHandle) -> Result<()> {
        handle.end().map_err(|source| {
            let why = "it cannot be ended, and stays pinned until the device is closed";
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
    /// The key for this process's own requests.
    #[must_use]
    pub fn lkey(&self) -> u32 {
        self.local
    }

    /// The key that a peer needs.
    #[must_use]
    pub fn rkey(&self) -> u32 {
        self.remote
    }

    /// The `ibv_mr`, for whoever calls verbs with it. It ends with this, and must not be ended
    /// otherwise.
    #[must_use]
    pub fn as_ptr(&self) -> NonNull<ffi::ibv_mr> {
        self.region
    }

    fn end(self) -> io::Result<()> {
        let mut this = ManuallyDrop::new(self);
        let result = this.deregister();
        // SAFETY: it is never looked at again. The domain goes after the region.
        unsafe { std::ptr::drop_in_place(&raw mut this.domain) };
        result
    }

    /// To be called once.
    fn deregister(&mut self) -> io::Result<()> {
        if !self.domain.fork_guard.is_current() {
            // The parent's: its keys would end.
            return Ok(());
        }
        // SAFETY: made by ibv_reg_mr, and ended nowhere else.
        match unsafe { ffi::ibv_dereg_mr(self.region.as_ptr()) } {
            0 => Ok(()),
            code => Err(io::Error::from_raw_os_error(code)),
        }
    }
}

impl Drop for VerbsHandle {
    fn drop(&mut self) {
        if let Err(error) = self.deregister() {
            tracing::error!(device = %self.domain.name, %error, "a registration could not be ended");
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

impl Drop for Domain {
    fn drop(&mut self) {
        if !self.fork_guard.is_current() {
            return;
        }
        // SAFETY: nothing that hostbuf made in it is left, or it would hold this; queue pairs of
        // the user's make it an error.
        let code = unsafe { ffi::ibv_dealloc_pd(self.protection.as_ptr()) };
        if code != 0 {
            let error = io::Error::from_raw_os_error(code);
            tracing::error!(device = %self.name, %error, "a protection domain could not be ended");
            // Closing would free what still points to it.
            return;
        }
        // SAFETY: as above.
        if unsafe { ffi::ibv_close_device(self.context.as_ptr()) } != 0 {
            let error = io::Error::last_os_error();
            tracing::error!(device = %self.name, %error, "an RDMA device could not be closed");
        }
    }
}

/// The devices of this host, for as long as nobody has opened them.
struct DeviceList {
    first: NonNull<*mut ffi::ibv_device>,
    count: usize,
}

impl DeviceList {
    fn new() -> Result<DeviceList> {
        let mut count = 0;
        // SAFETY: it writes the count, and returns an array of so many.
        let first = unsafe { ffi::ibv_get_device_list(&raw mut count) };
        let first = NonNull::new(first)
            .ok_or_else(|| Error::os("looking for RDMA devices")(io::Error::last_os_error()))?;
        Ok(DeviceList { first, count: usize::try_from(count).unwrap_or(0) })
    }

    fn named(&self) -> impl Iterator<Item = (String, NonNull<ffi::ibv_device>)> {
        // SAFETY: an array of so many, until it is freed, which is with this.
        let devices = unsafe { std::slice::from_raw_parts(self.first.as_ptr(), self.count) };
        devices.iter().filter_map(|&device| {
            let device = NonNull::new(device)?;
            // SAFETY: a device of the list; its name is a string that lives as long, or null.
            let name = unsafe {
                let name = ffi::ibv_get_device_name(device.as_ptr());
                (!name.is_null()).then(|| CStr::from_ptr(name))?
            };
            Some((name.to_string_lossy().into_owned(), device))
        })
    }
}

impl Drop for DeviceList {
    fn drop(&mut self) {
        // SAFETY: from ibv_get_device_list. A device that was opened lives on by its context.
        unsafe { ffi::ibv_free_device_list(self.first.as_ptr()) };
    }
}

fn missing(why: &str) -> Error {
    Error::Unsupported { what: "RDMA".into(), why: why.into() }
}

/// Rights as verbs name them. Whoever lets a peer write lets the device write: [`Access`] sees to
/// it, as the kernel wants it.
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
            "not all of it is mapped, or it is read-only and should be written"
        }
        Some(libc::EFAULT) if kernel::version() < READS_SHARED => {
            "not all of it is mapped; or it is mapped shared and read-only, as a frozen buffer is, which Linux registers from \
             6.2 on: register it before it is frozen, for reading, and hold the registration"
        }
        Some(libc::EFAULT) => {
            "not all of it is mapped; or it is a frozen buffer, which kernels before 6.2 cannot register with RDMA devices"
        }
        Some(libc::ENOMEM) => {
            "it is above the limit of locked memory (`ulimit -l`), which counts every registration, also of the same pages; \
             or the device has no room"
        }
        Some(libc::EINVAL) => "the device does not take these rights, this length, or this kind of memory",
        _ => "the device refuses it",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rights_as_the_kernel_wants_them() {
        assert_eq!(flags(Access::READ), 0);
        assert_eq!(flags(Access::WRITE), 1);
        assert_eq!(flags(Access::REMOTE_WRITE), 1 | 2);
        assert_eq!(flags(Access::REMOTE_READ), 4);
        assert_eq!(flags(Access::REMOTE_ATOMIC), 1 | 8);
        assert_eq!(flags(Access::ALL), 15);
    }

    #[test]
    fn a_host_without_a_device_says_so() {
        if Verbs::probe().is_ready() {
            let error = Verbs::open(Some("no such device")).unwrap_err();
            assert!(matches!(error, Error::Invalid { .. }), "{error}");
            return;
        }
        let error = Verbs::open(None).unwrap_err();
        assert!(matches!(error, Error::Unsupported { .. } | Error::Os { .. }), "{error}");
    }
}
