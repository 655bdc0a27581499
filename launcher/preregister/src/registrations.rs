//! The registrations of this process. They are made before `main` and live until the process ends.

use std::ffi::CString;
use std::ptr::{NonNull, null_mut};
use std::sync::{Arc, Mutex, MutexGuard};

use hostbuf::register::{self, Device, DeviceList, DeviceName, DevicePart, Registrar, Registration, Span};
use hostbuf::{Error, FillState, HostBuffer, Result};
use hostbuf_os::forking::hold_around_fork;
use hostbuf_os::poison::IgnorePoison;

use crate::registered_buffer::RegisteredBuffer;

/// The registration of a buffer with a device.
struct PreregisteredBuffer {
    buffer: HostBuffer,
    /// The index of the device.
    device: usize,
    /// The registration. `None` during a freeze, and after a failure to register again.
    registration: Option<Registration<Device>>,
}

/// All devices and registrations.
struct Registrations {
    /// The devices with their names for programs. They are never dropped, so that protection
    /// domains and contexts stay valid.
    devices: Vec<(Arc<Device>, CString)>,
    buffers: Vec<PreregisteredBuffer>,
}

static REGISTRATIONS: Mutex<Registrations> =
    Mutex::new(Registrations { devices: Vec::new(), buffers: Vec::new() });

/// Returns the registrations, locked. A fork waits for a freeze in progress, so the child finds the
/// list whole. The lock is taken before that of the own ranges: the buffers have been attached, so
/// the handler of this lock is the later one, and runs first.
fn registrations() -> MutexGuard<'static, Registrations> {
    hold_around_fork!(REGISTRATIONS: Registrations);
    REGISTRATIONS.lock().ignore_poison()
}

/// Registers all of `buffer`, for reading and, if `writing`, for writing.
fn register_all(buffer: &HostBuffer, device: &Arc<Device>, writing: bool) -> Result<Registration<Device>> {
    buffer.register_until_freeze(device, .., device.buffer_access(writing))
}

/// Describes a part of a registration with `device`.
fn record(part: &DevicePart, device: &Device, name: &CString, writable: bool) -> RegisteredBuffer {
    let pointer = |object: Option<NonNull<_>>| object.map_or(null_mut(), NonNull::as_ptr);
    let objects = device.objects();
    RegisteredBuffer {
        struct_size: size_of::<RegisteredBuffer>(),
        device: name.as_ptr(),
        address: part.span.start() as *mut _,
        length: part.span.len(),
        writable: i32::from(writable),
        local_key: part.key.lkey,
        remote_key: part.key.rkey,
        context: pointer(objects.context),
        protection_domain: pointer(objects.protection_domain),
        memory_region: pointer(part.memory_region),
        device_address: part.key.address,
    }
}

/// Registers every buffer with every available device.
///
/// # Errors
/// The error of a device; [`Error::Unsupported`] for a missing device that is not optional.
pub(crate) fn register(buffers: &[HostBuffer], devices: &DeviceList) -> Result<()> {
    // Without the lock, since a driver may start a program of its own, and forking takes the lock.
    let mut opened = Vec::new();
    for device in &devices.0 {
        match device.name.open() {
            Ok(device) => {
                let name = CString::new(device.name()).unwrap_or_default();
                opened.push((Arc::new(device), name));
            }
            Err(register::Error::Unsupported { .. } | register::Error::Invalid { .. }) if device.optional => {
            }
            Err(error) => return Err(with_advice(error, &device.name)),
        }
    }
    let mut registered = Vec::new();
    for buffer in buffers {
        let writing = buffer.fill_state()? != FillState::Frozen;
        for (device, (opened, _)) in opened.iter().enumerate() {
            let registration = Some(register_all(buffer, opened, writing)?);
            registered.push(PreregisteredBuffer { buffer: buffer.clone(), device, registration });
        }
    }
    *registrations() = Registrations { devices: opened, buffers: registered };
    Ok(())
}

/// Returns the error of a device that could not be opened. If the device is missing, the error
/// names the alternatives.
fn with_advice(error: register::Error, name: &DeviceName) -> Error {
    let what = format!("--register {name}");
    let why = match error {
        register::Error::Unsupported { why, .. } | register::Error::Invalid { what: why } => why,
        other => return other.into(),
    };
    Error::Unsupported {
        what,
        why: format!(
            "{why}. --register {name}:optional runs the job without it; hostbuf doctor shows details"
        ),
    }
}

/// Ends the registrations of all buffers in this range. Returns whether all have ended.
pub(crate) fn end(range: Span) -> bool {
    let mut all = registrations();
    let mut well = true;
    for one in all.buffers.iter_mut().filter(|one| span_of(&one.buffer).overlaps(range)) {
        well &= one.registration.take().is_none_or(|registration| registration.deregister().is_ok());
    }
    well
}

/// Makes the registrations that [`end`] has ended again, for reading only. Returns the reasons of
/// failures.
pub(crate) fn again(range: Span) -> Vec<String> {
    let mut all = registrations();
    let Registrations { devices, buffers } = &mut *all;
    let mut failures = Vec::new();
    let ended =
        |one: &&mut PreregisteredBuffer| one.registration.is_none() && span_of(&one.buffer).overlaps(range);
    for one in buffers.iter_mut().filter(ended) {
        let (device, kind) = &devices[one.device];
        match register_all(&one.buffer, device, false) {
            Ok(registration) => one.registration = Some(registration),
            Err(error) => {
                let (name, kind) = (one.buffer.name(), kind.to_string_lossy());
                failures.push(format!(
                    "buffer \"{name}\" is frozen, and no longer registered with {kind}: {error}"
                ));
            }
        }
    }
    failures
}

/// Describes registration number `index` for the program. A registration that the device has split
/// counts once for each part.
pub(crate) fn describe(index: usize) -> Option<RegisteredBuffer> {
    let all = registrations();
    let mut parts = all.buffers.iter().flat_map(|one| {
        let (device, name) = &all.devices[one.device];
        let of = |registration: &Registration<Device>| {
            let parts = registration.span().map(|span| device.parts(span, registration.handle()));
            let writable = registration.access().writes();
            let describe = |part: &DevicePart| record(part, device, name, writable);
            parts.iter().flatten().map(describe).collect::<Vec<_>>()
        };
        one.registration.as_ref().map(of).unwrap_or_default()
    });
    parts.nth(index)
}

fn span_of(buffer: &HostBuffer) -> Span {
    Span::new(buffer.as_ptr().as_ptr() as usize, buffer.len()).expect("a buffer has bytes")
}
