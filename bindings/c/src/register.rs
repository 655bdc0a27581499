//! Devices, and the registration of buffers with them.

#![allow(unsafe_code, reason = "the functions are called by C, with pointers of the caller")]

use std::ffi::{CString, c_char, c_int};
use std::mem::MaybeUninit;
use std::ptr::null_mut;
use std::sync::Arc;

use library::register::{Device, DeviceKey, DeviceName, Probe, Registrar, Registration};
use library::{Access, Error};

use crate::buffer::hostbuf_buffer;
use crate::pointers::{input, output, struct_output, text, write_text};
use crate::status::{CallError, CallResult, argument, call, hostbuf_status, set_message};

/// The access of a device to registered memory, a sum of these values. Reading on behalf of this
/// process is always allowed.
#[allow(dead_code, reason = "the functions take an integer, since the caller's may be invalid")]
#[repr(C)]
#[derive(Clone, Copy)]
pub enum hostbuf_access {
    /// The device reads on behalf of this process: the source of sends, and of copies to a GPU.
    HOSTBUF_READ = 0,
    /// The device writes on behalf of this process.
    HOSTBUF_WRITE = 1,
    /// A peer may read.
    HOSTBUF_REMOTE_READ = 2,
    /// A peer may write.
    HOSTBUF_REMOTE_WRITE = 5,
    /// A peer may use atomic operations.
    HOSTBUF_REMOTE_ATOMIC = 9,
}

/// The key of registered memory, for requests to the device.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct hostbuf_key {
    /// The size of this structure: initialize it with `HOSTBUF_KEY_INIT`.
    pub struct_size: usize,
    /// The GPU's address of the first byte of the registered range (CUDA); otherwise 0.
    pub device_address: u64,
    /// The `lkey`, for requests of this process (RDMA); otherwise 0.
    pub local_key: u32,
    /// The `rkey`, for requests of peers (RDMA); otherwise 0.
    pub remote_key: u32,
}

sized_struct!(hostbuf_key, "HOSTBUF_KEY_INIT", last: remote_key: u32);

/// A device for the registration of memory.
pub struct hostbuf_device {
    pub(crate) device: Arc<Device>,
}

/// A registration of a part of a buffer with a device.
pub struct hostbuf_registration {
    registration: Registration<Device>,
}

impl From<DeviceKey> for hostbuf_key {
    fn from(key: DeviceKey) -> hostbuf_key {
        hostbuf_key {
            struct_size: size_of::<hostbuf_key>(),
            device_address: key.address,
            local_key: key.lkey,
            remote_key: key.rkey,
        }
    }
}

/// Converts an access of the caller, a sum of `hostbuf_access`.
pub fn access(bits: c_int) -> CallResult<Access> {
    let known =
        [(2, Access::REMOTE_READ), (4, Access::REMOTE_WRITE), (8, Access::REMOTE_ATOMIC), (1, Access::WRITE)];
    let all = known.iter().filter(|(bit, _)| bits & bit != 0);
    match bits {
        0..=15 => Ok(all.fold(Access::READ, |sum, (_, one)| sum | *one)),
        _ => Err(argument(format!("invalid access {bits}: expected a sum of values of hostbuf_access"))),
    }
}

/// Checks whether this process can use a device, without opening it. Returns `HOSTBUF_OK`, and
/// `hostbuf_message` describes the device, or `HOSTBUF_UNSUPPORTED`, and `hostbuf_message` gives
/// the reason. `device` is a name as for `hostbuf_device_open`.
// Safety: `device` is null or a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hostbuf_device_probe(device: *const c_char) -> hostbuf_status {
    call(|| {
        // SAFETY: by the contract of this function.
        let name: DeviceName = unsafe { text(device, "device") }?.parse()?;
        match name.probe() {
            Probe::Ready(what) => {
                set_message(what);
                Ok(())
            }
            Probe::Missing(why) => {
                Err(CallError::Failed(Error::Unsupported { what: format!("the device {name}"), why }))
            }
        }
    })
}

/// Opens a device: `mlock` (page-locking), `cuda` or `cuda:1` (a GPU), `rdma` or `rdma:mlx5_0` (the
/// first RDMA device, or the one with that name).
// Safety: `device` is null or a C string, `to` is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hostbuf_device_open(
    device: *const c_char,
    to: Option<&mut MaybeUninit<*mut hostbuf_device>>,
) -> hostbuf_status {
    call(|| {
        let to = output(to, "to", null_mut())?;
        // SAFETY: by the contract of this function.
        let name = unsafe { text(device, "device") }?;
        let device = Arc::new(name.parse::<DeviceName>()?.open()?);
        *to = Box::into_raw(Box::new(hostbuf_device { device }));
        Ok(())
    })
}

/// Closes a device. It stays open until its registrations have ended. A null device is ignored.
// Safety: `device` is a live handle, and is not used again.
#[unsafe(no_mangle)]
pub extern "C" fn hostbuf_device_close(device: Option<Box<hostbuf_device>>) {
    call(|| {
        drop(device);
        Ok(())
    });
}

/// Copies the device's name, for messages, to `name` with a NUL at the end. A name that does not
/// fit into `size` bytes is truncated.
// Safety: `device` is null or a live handle; `name` has room for `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hostbuf_device_name(
    device: Option<&hostbuf_device>,
    name: *mut c_char,
    size: usize,
) -> hostbuf_status {
    call(|| {
        let full = CString::new(input(device, "device")?.device.name()).unwrap_or_default();
        // SAFETY: by the contract of this function.
        unsafe { write_text(&full, name, size, "name") }
    })
}

/// Registers `length` bytes of a buffer from `offset` with a device, or all bytes from `offset` if
/// `length` is 0.
// Safety: the pointers are null or valid.
#[unsafe(no_mangle)]
pub extern "C" fn hostbuf_register(
    buffer: Option<&hostbuf_buffer>,
    device: Option<&hostbuf_device>,
    offset: usize,
    length: usize,
    access: c_int,
    to: Option<&mut MaybeUninit<*mut hostbuf_registration>>,
) -> hostbuf_status {
    call(|| {
        let to = output(to, "to", null_mut())?;
        let (own, device) = (input(buffer, "buffer")?, input(device, "device")?);
        let end = match length {
            0 => own.buffer.len(),
            length => offset
                .checked_add(length)
                .ok_or_else(|| argument(format!("{length} bytes from {offset} are not a region")))?,
        };
        let registration = own.buffer.register(&device.device, offset..end, self::access(access)?)?;
        *to = Box::into_raw(Box::new(hostbuf_registration { registration }));
        Ok(())
    })
}

/// Writes the key of a registration to `to`.
// Safety: `registration` is null or a live handle, `to` is null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hostbuf_registration_key(
    registration: Option<&hostbuf_registration>,
    to: *mut hostbuf_key,
) -> hostbuf_status {
    call(|| {
        // SAFETY: by the contract of this function.
        let mut to = unsafe { struct_output(to, "to") }?;
        to.write(&input(registration, "registration")?.registration.key().into());
        Ok(())
    })
}

/// Ends a registration and releases `registration` in any case. If the device refuses, the pages
/// may stay pinned until the process exits.
// Safety: `registration` is null or a live handle, and is not used again.
#[unsafe(no_mangle)]
pub extern "C" fn hostbuf_deregister(registration: Option<Box<hostbuf_registration>>) -> hostbuf_status {
    call(|| Ok(registration.ok_or_else(|| argument("registration is null"))?.registration.deregister()?))
}
