//! Devices, and registrations of a buffer with them.

use std::ffi::{CString, c_char, c_int};
use std::ptr::null_mut;
use std::sync::Arc;

use library::register::{Device, DeviceKey, DeviceName, Probe, Registrar, Registration};
use library::{Access, Error};

use crate::buffer::{buffer, hostbuf_buffer};
use crate::status::{Outcome, Trouble, argument, call, given, hostbuf_status, place, say, text};

/// What a device may do with memory: a sum of these. Reading on behalf of this process is always
/// allowed.
#[allow(dead_code, reason = "a caller's number is read as one, since it may be any")]
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

/// What requests about registered memory are made with.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct hostbuf_key {
    /// CUDA: where the GPU sees the first byte of the registered range. Else 0.
    pub device_address: u64,
    /// RDMA: `lkey` and `rkey`. Else 0.
    pub local_key: u32,
    pub remote_key: u32,
}

/// A device that memory is registered with.
pub struct hostbuf_device {
    pub(crate) device: Arc<Device>,
}

/// Proof that a device knows a part of a buffer.
pub struct hostbuf_region {
    registration: Registration<Device>,
}

impl From<DeviceKey> for hostbuf_key {
    fn from(key: DeviceKey) -> hostbuf_key {
        hostbuf_key { device_address: key.address, local_key: key.lkey, remote_key: key.rkey }
    }
}

/// Rights that the caller named by number.
pub fn access(bits: c_int) -> Outcome<Access> {
    let known =
        [(2, Access::REMOTE_READ), (4, Access::REMOTE_WRITE), (8, Access::REMOTE_ATOMIC), (1, Access::WRITE)];
    let all = known.iter().filter(|(bit, _)| bits & bit != 0);
    match bits {
        0..=15 => Ok(all.fold(Access::READ, |sum, (_, one)| sum | *one)),
        _ => Err(argument(format!("access = {bits}: a sum of hostbuf_access is meant"))),
    }
}

/// Whether a device can be used in this process, without opening it: `HOSTBUF_OK`, or
/// `HOSTBUF_UNSUPPORTED`; `hostbuf_message` says with what, or why not. `device` as for
/// `hostbuf_device_open`.
// Safety: `device` is null or text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hostbuf_device_probe(device: *const c_char) -> hostbuf_status {
    call(|| {
        // SAFETY: by the contract of this.
        let name: DeviceName = unsafe { text(device, "device") }?.parse()?;
        match name.probe() {
            Probe::Ready(what) => {
                say(what);
                Ok(())
            }
            Probe::Missing(why) => {
                Err(Trouble::Failed(Error::Unsupported { what: format!("the device {name}"), why }))
            }
        }
    })
}

/// Opens a device: `mlock` (page-locking), `cuda` or `cuda:1` (a GPU), `rdma` or `rdma:mlx5_0` (the
/// first network card, or the one of that name).
// Safety: `device` is null or text, `to` null or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hostbuf_device_open(
    device: *const c_char,
    to: *mut *mut hostbuf_device,
) -> hostbuf_status {
    call(|| {
        // SAFETY: by the contract of this.
        let to = unsafe { place(to, "to") }?;
        *to = null_mut();
        // SAFETY: as above.
        let name = unsafe { text(device, "device") }?;
        let device = Arc::new(Device::open(&name.parse()?)?);
        *to = Box::into_raw(Box::new(hostbuf_device { device }));
        Ok(())
    })
}

/// Gives a device back; what is registered with it keeps it. Null: nothing.
// Safety: `device` was given out, and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hostbuf_device_close(device: *mut hostbuf_device) {
    if !device.is_null() {
        // SAFETY: from hostbuf_device_open(), by the contract of this.
        let device = unsafe { Box::from_raw(device) };
        call(|| {
            drop(device);
            Ok(())
        });
    }
}

/// Copies the device's name, for messages, with a NUL at the end; cut where there is no room.
// Safety: `device` is null or was given out; `name` has room for `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hostbuf_device_name(
    device: *const hostbuf_device,
    name: *mut c_char,
    size: usize,
) -> hostbuf_status {
    call(|| {
        // SAFETY: by the contract of this.
        let (device, first) = unsafe { (given(device, "device")?, place(name, "name")?) };
        let words = CString::new(device.device.name()).unwrap_or_default();
        let length = words.count_bytes().min(size.checked_sub(1).ok_or_else(|| argument("size = 0"))?);
        // SAFETY: so many bytes of both, and one more of the caller's.
        unsafe {
            std::ptr::copy_nonoverlapping(words.as_ptr(), first, length);
            name.add(length).write(0);
        }
        Ok(())
    })
}

/// Registers `length` bytes of a buffer from `offset` with a device; `length` 0: up to the end.
// Safety: The pointers are null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hostbuf_register(
    buffer: *mut hostbuf_buffer,
    device: *const hostbuf_device,
    offset: usize,
    length: usize,
    access: c_int,
    to: *mut *mut hostbuf_region,
) -> hostbuf_status {
    call(|| {
        // SAFETY: by the contract of this.
        let to = unsafe { place(to, "to") }?;
        *to = null_mut();
        // SAFETY: as above.
        let (own, device) = unsafe { (self::buffer(buffer)?, given(device, "device")?) };
        let end = match length {
            0 => own.buffer.len(),
            length => offset
                .checked_add(length)
                .ok_or_else(|| argument(format!("{length} bytes from {offset} are no region")))?,
        };
        let registration = own.buffer.register(&device.device, offset..end, self::access(access)?)?;
        *to = Box::into_raw(Box::new(hostbuf_region { registration }));
        Ok(())
    })
}

/// What requests about a region are made with; all 0 for a null one.
// Safety: `region` is null or was given out.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hostbuf_region_key(region: *const hostbuf_region) -> hostbuf_key {
    // SAFETY: by the contract of this.
    unsafe { region.as_ref() }.map_or_else(hostbuf_key::default, |region| region.registration.key().into())
}

/// Ends a registration, and gives it back in any case: when that fails, what was pinned may stay so
/// until the process ends.
// Safety: `region` is null or was given out, and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hostbuf_deregister(region: *mut hostbuf_region) -> hostbuf_status {
    call(|| {
        if region.is_null() {
            return Err(argument("region is null"));
        }
        // SAFETY: from hostbuf_register(), by the contract of this.
        let region = unsafe { Box::from_raw(region) };
        Ok(region.registration.deregister()?)
    })
}
