//! The registrations of this process, which are made before `main` and last until it exits.

use std::ffi::CString;
use std::ptr::null_mut;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hostbuf::register::{
    self, Access, Device, DeviceHandle, DeviceList, DeviceName, Registrar, Registration, Span,
};
use hostbuf::{Error, FillState, HostBuffer, Result};
use hostbuf_os::forking::hold_around_fork;

use crate::registration_record::RegistrationRecord;

/// The registration of a buffer with a device.
struct RegisteredBuffer {
    buffer: HostBuffer,
    /// The index of the device.
    device: usize,
    /// `None` during a freeze, and if the registration for reading failed.
    made: Option<Registration<Device>>,
}

struct Registrations {
    /// The open devices. They are never dropped, so protection domains and contexts stay valid.
    devices: Vec<(Arc<Device>, CString)>,
    entries: Vec<RegisteredBuffer>,
}

static REGISTRATIONS: Mutex<Registrations> =
    Mutex::new(Registrations { devices: Vec::new(), entries: Vec::new() });

/// Returns the registrations, locked. A fork waits for a freeze in progress, so the child finds the
/// list whole. The lock is taken before that of the own ranges: the buffers have been attached, so
/// the handler of this lock is the later one, and runs first.
fn lock() -> MutexGuard<'static, Registrations> {
    hold_around_fork!(REGISTRATIONS: Registrations);
    REGISTRATIONS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Registers all of `buffer`, for reading and writing or for reading only. With RDMA, peers get the
/// same access.
fn register_whole(buffer: &HostBuffer, device: &Arc<Device>, writing: bool) -> Result<Registration<Device>> {
    let access = match **device {
        // There is no device that writes.
        Device::Mlock(_) => Access::READ,
        #[cfg(feature = "rdma")]
        Device::Rdma(_) if writing => Access::REMOTE_READ | Access::REMOTE_WRITE,
        #[cfg(feature = "rdma")]
        Device::Rdma(_) => Access::REMOTE_READ,
        #[cfg(feature = "cuda")]
        Device::Cuda(_) if writing => Access::WRITE,
        #[cfg(feature = "cuda")]
        Device::Cuda(_) => Access::READ,
    };
    buffer.register_until_freeze(device, .., access)
}

/// Returns a record for each chunk of the registration.
fn records(registration: &Registration<Device>) -> Vec<RegistrationRecord> {
    let whole = |span: Span| RegistrationRecord {
        address: span.start() as *mut _,
        length: span.len(),
        writable: i32::from(registration.access().writes()),
        ..RegistrationRecord::default()
    };
    match registration.handle() {
        DeviceHandle::Mlock => registration.span().map(whole).into_iter().collect(),
        #[cfg(feature = "cuda")]
        DeviceHandle::Cuda(handle) => {
            let part = |chunk: &hostbuf::register::CudaChunk| RegistrationRecord {
                device_address: chunk.device,
                ..whole(chunk.host)
            };
            handle.chunks().iter().map(part).collect()
        }
        #[cfg(feature = "rdma")]
        DeviceHandle::Rdma(handle) => {
            let key = registration.key();
            let region = handle.as_ptr().as_ptr().cast();
            let part = |span| RegistrationRecord {
                local_key: key.lkey,
                remote_key: key.rkey,
                region,
                ..whole(span)
            };
            registration.span().map(part).into_iter().collect()
        }
    }
}

/// Registers every buffer with every available device.
///
/// # Errors
/// The errors of the devices; [`Error::Unsupported`] if a device that is not optional is missing.
pub(crate) fn register(buffers: &[HostBuffer], devices: &DeviceList) -> Result<()> {
    // Without the lock, since a driver may start a program of its own, and forking takes the lock.
    let mut opened = Vec::new();
    for device in &devices.0 {
        match Device::open(&device.name) {
            Ok(device) => {
                let name = CString::new(device.name()).unwrap_or_default();
                opened.push((Arc::new(device), name));
            }
            Err(register::Error::Unsupported { .. } | register::Error::Invalid { .. }) if device.optional => {
            }
            Err(error) => return Err(with_advice(error, &device.name)),
        }
    }
    let mut entries = Vec::new();
    for buffer in buffers {
        let writing = buffer.fill_state()? != FillState::Frozen;
        for (device, (opened, _)) in opened.iter().enumerate() {
            let made = register_whole(buffer, opened, writing)?;
            entries.push(RegisteredBuffer { buffer: buffer.clone(), device, made: Some(made) });
        }
    }
    *lock() = Registrations { devices: opened, entries };
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
    let mut all = lock();
    let mut well = true;
    for entry in all.entries.iter_mut().filter(|entry| span_of(&entry.buffer).overlaps(range)) {
        well &= entry.made.take().is_none_or(|made| made.deregister().is_ok());
    }
    well
}

/// Registers the buffers whose registrations [`end`] has ended again, for reading only. Returns a
/// message for each registration that failed.
pub(crate) fn again(range: Span) -> Vec<String> {
    let mut all = lock();
    let Registrations { devices, entries } = &mut *all;
    let mut failures = Vec::new();
    for entry in
        entries.iter_mut().filter(|entry| entry.made.is_none() && span_of(&entry.buffer).overlaps(range))
    {
        let (device, kind) = &devices[entry.device];
        match register_whole(&entry.buffer, device, false) {
            Ok(made) => entry.made = Some(made),
            Err(error) => {
                let (name, kind) = (entry.buffer.name(), kind.to_string_lossy());
                failures.push(format!(
                    "buffer \"{name}\" is frozen, and no longer registered with {kind}: {error}"
                ));
            }
        }
    }
    failures
}

/// Returns the record of registration number `index`, or `None` if there are fewer.
pub(crate) fn describe(index: usize) -> Option<RegistrationRecord> {
    let all = lock();
    let parts = all.entries.iter().flat_map(|entry| {
        let (device, name) = &all.devices[entry.device];
        let (context, domain) = match &**device {
            #[cfg(feature = "rdma")]
            Device::Rdma(verbs) => {
                (verbs.context().as_ptr().cast(), verbs.protection_domain().as_ptr().cast())
            }
            _ => (null_mut(), null_mut()),
        };
        let made = entry.made.iter().flat_map(records);
        // The name stays valid, since devices are never dropped.
        made.map(move |part| RegistrationRecord {
            device: name.as_ptr(),
            context,
            protection_domain: domain,
            ..part
        })
    });
    parts.skip(index).take(1).last()
}

fn span_of(buffer: &HostBuffer) -> Span {
    Span::new(buffer.as_ptr().as_ptr() as usize, buffer.len()).expect("a buffer has bytes")
}
