//! The C structure that describes the registration of a buffer.

#![allow(unsafe_code, reason = "the record is a structure of C, which states its size")]

use std::ffi::{c_char, c_int, c_void};

use hostbuf::sized_struct::SizedStruct;

/// The C structure `hostbuf_registered_buffer`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct RegisteredBuffer {
    pub(crate) struct_size: usize,
    pub(crate) device: *const c_char,
    pub(crate) address: *mut c_void,
    pub(crate) length: usize,
    pub(crate) writable: c_int,
    pub(crate) local_key: u32,
    pub(crate) remote_key: u32,
    pub(crate) context: *mut c_void,
    pub(crate) protection_domain: *mut c_void,
    pub(crate) memory_region: *mut c_void,
    pub(crate) device_address: u64,
}

// SAFETY: the type is `repr(C)` and begins with its size; its last field, of 8 bytes, ends at a
// multiple of 8.
unsafe impl SizedStruct for RegisteredBuffer {
    const NAME: &'static str = "hostbuf_registered_buffer";
    const INITIALIZER: &'static str = "HOSTBUF_REGISTERED_BUFFER_INIT";
}
