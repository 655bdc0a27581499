//! The registrations of this process, from before `main` until its end.

use std::ffi::CString;
use std::ptr::null_mut;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hostbuf::register::{
    self, Access, Device, DeviceHandle, DeviceList, DeviceName, Registrar, Registration, Span,
};
use hostbuf::{Error, FillState, HostBuffer, Result};

use crate::described::Described;

/// The registration of one buffer with one device.
struct PreregisteredBuffer {
    buffer: HostBuffer,
    /// The index in [`RegistrationTable::devices`].
    device: usize,
    /// The registration. `None` while a freeze is in progress, or if registering again has failed.
    made: Option<Registration<Device>>,
}

/// The devices and registrations of this process.
struct RegistrationTable {
    /// The devices, which stay open until the process ends, as do their protection domains and
    /// contexts.
    devices: Vec<(Arc<Device>, CString)>,
    pairs: Vec<PreregisteredBuffer>,
}

static TABLE: Mutex<RegistrationTable> =
    Mutex::new(RegistrationTable { devices: Vec::new(), pairs: Vec::new() });

fn table() -> MutexGuard<'static, RegistrationTable> {
    TABLE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Registers all of `buffer`, for reading and writing or only for reading. With RDMA, peers get the
/// same access.
fn all_of(buffer: &HostBuffer, device: &Arc<Device>, writing: bool) -> Result<Registration<Device>> {
    let access = match **device {
        // It only locks pages.
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
    buffer.register(device, .., access)
}

/// Returns one description for each part that the device registers as one.
fn described(registration: &Registration<Device>) -> Vec<Described> {
    let whole = |span: Span| Described {
        address: span.start() as *mut _,
        length: span.len(),
        writable: i32::from(registration.access().writes()),
        ..Described::default()
    };
    match registration.handle() {
        DeviceHandle::Mlock => vec![whole(registration.span())],
        #[cfg(feature = "cuda")]
        DeviceHandle::Cuda(handle) => {
            let part = |chunk: &hostbuf::register::CudaChunk| Described {
                device_address: chunk.device,
                ..whole(chunk.host)
            };
            handle.chunks().iter().map(part).collect()
        }
        #[cfg(feature = "rdma")]
        DeviceHandle::Rdma(handle) => {
            let key = registration.key();
            let region = handle.as_ptr().as_ptr().cast();
            vec![Described {
                local_key: key.lkey,
                remote_key: key.rkey,
                region,
                ..whole(registration.span())
            }]
        }
    }
}

/// Registers every buffer with every available device.
///
/// # Errors
/// Returns those of the devices, and [`Error::Unsupported`] if a device is missing that is not
/// optional.
pub(crate) fn register(buffers: &[HostBuffer], devices: &DeviceList) -> Result<()> {
    let mut table = table();
    for device in &devices.0 {
        match Device::open(&device.name) {
            Ok(device) => {
                let name = CString::new(device.name()).unwrap_or_default();
                table.devices.push((Arc::new(device), name));
            }
            Err(register::Error::Unsupported { .. } | register::Error::Invalid { .. }) if device.optional => {
            }
            Err(error) => return Err(with_advice(error, &device.name)),
        }
    }
    for buffer in buffers {
        let writing = buffer.fill_state()? != FillState::Frozen;
        for device in 0..table.devices.len() {
            let made = all_of(buffer, &table.devices[device].0, writing)?;
            table.pairs.push(PreregisteredBuffer { buffer: buffer.clone(), device, made: Some(made) });
        }
    }
    Ok(())
}

/// Returns the error of a device that could not be opened. If the device is missing, the error
/// names the alternatives.
fn with_advice(error: register::Error, name: &DeviceName) -> Error {
    let why = match error {
        register::Error::Unsupported { why, .. } | register::Error::Invalid { what: why } => why,
        other => return other.into(),
    };
    Error::Unsupported {
        what: format!("--register {name}"),
        why: format!("{why}. --register {name}:optional goes on without it; hostbuf doctor says more"),
    }
}

/// Ends the registrations of all buffers in this range. Returns whether all have ended.
pub(crate) fn end(range: Span) -> bool {
    let mut table = table();
    let mut well = true;
    for pair in table.pairs.iter_mut().filter(|pair| span_of(&pair.buffer).overlaps(range)) {
        well &= pair.made.take().is_none_or(|made| made.deregister().is_ok());
    }
    well
}

/// Registers the buffers again, for reading only, after [`end`]. Returns the reasons of the
/// registrations that failed.
pub(crate) fn again(range: Span) -> Vec<String> {
    let mut table = table();
    let RegistrationTable { devices, pairs } = &mut *table;
    let mut failures = Vec::new();
    for pair in pairs.iter_mut().filter(|pair| pair.made.is_none() && span_of(&pair.buffer).overlaps(range)) {
        let (device, kind) = &devices[pair.device];
        match all_of(&pair.buffer, device, false) {
            Ok(made) => pair.made = Some(made),
            Err(error) => {
                let (name, kind) = (pair.buffer.name(), kind.to_string_lossy());
                failures.push(format!(
                    "buffer \"{name}\" is frozen, and no longer registered with {kind}: {error}"
                ));
            }
        }
    }
    failures
}

/// Describes registration number `index` to the program.
pub(crate) fn describe(index: usize) -> Option<Described> {
    let table = table();
    let parts = table.pairs.iter().flat_map(|pair| {
        let (device, name) = &table.devices[pair.device];
        let (context, domain) = match &**device {
            #[cfg(feature = "rdma")]
            Device::Rdma(verbs) => {
                (verbs.context().as_ptr().cast(), verbs.protection_domain().as_ptr().cast())
            }
            _ => (null_mut(), null_mut()),
        };
        let made = pair.made.iter().flat_map(described);
        // The text of the name stays valid: devices are never dropped.
        made.map(move |part| Described { device: name.as_ptr(), context, protection_domain: domain, ..part })
    });
    parts.skip(index).take(1).last()
}

fn span_of(buffer: &HostBuffer) -> Span {
    Span::new(buffer.as_ptr().as_ptr() as usize, buffer.len()).expect("a buffer has bytes")
}
