//! The C structure that describes a registration.

use std::ffi::{c_char, c_int, c_void};
use std::ptr::null_mut;

/// The C structure `hostbuf_registration`.
#[repr(C)]
pub struct RegistrationRecord {
    pub(crate) device: *const c_char,
    pub(crate) address: *mut c_void,
    pub(crate) length: usize,
    pub(crate) writable: c_int,
    pub(crate) local_key: u32,
    pub(crate) remote_key: u32,
    pub(crate) context: *mut c_void,
    pub(crate) protection_domain: *mut c_void,
    pub(crate) region: *mut c_void,
    pub(crate) device_address: u64,
}

impl Default for RegistrationRecord {
    fn default() -> RegistrationRecord {
        RegistrationRecord {
            device: std::ptr::null(),
            address: null_mut(),
            length: 0,
            writable: 0,
            local_key: 0,
            remote_key: 0,
            context: null_mut(),
            protection_domain: null_mut(),
            region: null_mut(),
            device_address: 0,
        }
    }
}
