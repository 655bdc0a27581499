//! Routes to other ports.

#![allow(unsafe_code, reason = "libibverbs is called by foreign functions")]

use std::io;
use std::ptr::NonNull;

use ibverbs_sys as ffi;

use crate::verbs::gid::Gid;
use crate::verbs::port::Port;
use hostbuf::error::{Error, Result};
use hostbuf_os::fork_guard::ForkGuard;
use hostbuf_register::Verbs;

/// The route to a port, for datagrams (`ibv_ah`). The [`Verbs`] that it was created with must
/// outlive it.
pub(crate) struct AddressHandle {
    handle: NonNull<ffi::ibv_ah>,
    fork_guard: ForkGuard,
}

// SAFETY: any thread may call verbs, and several may at a time.
unsafe impl Send for AddressHandle {}

impl AddressHandle {
    /// Creates a handle for the port at `gid`.
    ///
    /// # Errors
    /// [`Error::Os`].
    pub(crate) fn new(verbs: &Verbs, port: &Port, gid: Gid) -> Result<AddressHandle> {
        let mut attributes = address_vector(port, gid);
        // SAFETY: the protection domain exists as long as `verbs`.
        let handle =
            unsafe { ffi::ibv_create_ah(verbs.protection_domain().as_ptr().cast(), &raw mut attributes) };
        let handle = NonNull::new(handle)
            .ok_or_else(|| Error::os(format!("resolving a route to {gid}"))(io::Error::last_os_error()))?;
        Ok(AddressHandle { handle, fork_guard: ForkGuard::current() })
    }

    pub(crate) fn as_ptr(&self) -> *mut ffi::ibv_ah {
        self.handle.as_ptr()
    }
}

impl Drop for AddressHandle {
    fn drop(&mut self) {
        if !self.fork_guard.is_current() {
            // It belongs to the parent process.
            return;
        }
        // SAFETY: created by `new`, and destroyed only here.
        let code = unsafe { ffi::ibv_destroy_ah(self.handle.as_ptr()) };
        if code != 0 {
            tracing::error!(code, "cannot destroy an address handle");
        }
    }
}

/// Returns the attributes of the route from `port` to the port at `gid`.
pub(crate) fn address_vector(port: &Port, gid: Gid) -> ffi::ibv_ah_attr {
    let mut attributes = ffi::ibv_ah_attr { is_global: 1, port_num: port.number, ..Default::default() };
    attributes.grh.dgid = ffi::ibv_gid { raw: *gid.as_bytes() };
    attributes.grh.sgid_index = port.gid_index;
    attributes.grh.hop_limit = 64;
    attributes
}
