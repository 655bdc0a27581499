//! The registrations of this process: made before `main`, and there until it ends.

use std::ffi::CString;
use std::ptr::null_mut;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hostbuf::register::{
    self, Access, Device, DeviceHandle, DeviceList, DeviceName, Registrar, Registration, Span,
};
use hostbuf::{Error, FillState, HostBuffer, Result};

use crate::described::Described;

/// A buffer and a device.
struct Pair {
    buffer: HostBuffer,
    /// Which of the devices.
    device: usize,
    /// `None` while a freeze is under way, and when it could not be made again.
    made: Option<Registration<Device>>,
}

struct Held {
    /// They stay, so that protection domains and contexts do.
    devices: Vec<(Arc<Device>, CString)>,
    pairs: Vec<Pair>,
}

static HELD: Mutex<Held> = Mutex::new(Held { devices: Vec::new(), pairs: Vec::new() });

fn held() -> MutexGuard<'static, Held> {
    HELD.lock().unwrap_or_else(PoisonError::into_inner)
}

/// All of `buffer`, for reading and writing or only for reading; with RDMA peers may do the same.
fn all_of(buffer: &HostBuffer, device: &Arc<Device>, writing: bool) -> Result<Registration<Device>> {
    let access = match **device {
        // It writes nothing.
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

/// One description for each part that the device takes as one.
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

/// Registers every buffer with every device that is there.
///
/// # Errors
/// The device's; or that there is none, unless it may be missing.
pub(crate) fn register(buffers: &[HostBuffer], devices: &DeviceList) -> Result<()> {
    let mut held = held();
    for device in &devices.0 {
        match Device::open(&device.name) {
            Ok(device) => {
                let name = CString::new(device.name()).unwrap_or_default();
                held.devices.push((Arc::new(device), name));
            }
            Err(register::Error::Unsupported { .. } | register::Error::Invalid { .. }) if device.optional => {
            }
            Err(error) => return Err(with_advice(error, &device.name)),
        }
    }
    for buffer in buffers {
        let writing = buffer.fill_state()? != FillState::Frozen;
        for device in 0..held.devices.len() {
            let made = all_of(buffer, &held.devices[device].0, writing)?;
            held.pairs.push(Pair { buffer: buffer.clone(), device, made: Some(made) });
        }
    }
    Ok(())
}

/// What else can be done about a device that is not there.
fn with_advice(error: register::Error, name: &DeviceName) -> Error {
    let what = format!("--register {name}");
    let why = match error {
        register::Error::Unsupported { why, .. } => why,
        other => other.to_string(),
    };
    Error::Unsupported {
        what,
        why: format!("{why}. --register {name}:optional goes on without it; hostbuf doctor says more"),
    }
}

/// Ends the registrations of all buffers in this range. Whether all have ended.
pub(crate) fn end(range: Span) -> bool {
    let mut held = held();
    let mut well = true;
    for pair in held.pairs.iter_mut().filter(|pair| span_of(&pair.buffer).overlaps(range)) {
        well &= pair.made.take().is_none_or(|made| made.deregister().is_ok());
    }
    well
}

/// Makes those again that [`end`] has ended, for reading alone. Why some could not be made.
pub(crate) fn again(range: Span) -> Vec<String> {
    let mut held = held();
    let Held { devices, pairs } = &mut *held;
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

/// Registration number `index`, as the program is told.
pub(crate) fn describe(index: usize) -> Option<Described> {
    let held = held();
    let parts = held.pairs.iter().flat_map(|pair| {
        let (device, name) = &held.devices[pair.device];
        let (context, domain) = match &**device {
            #[cfg(feature = "rdma")]
            Device::Rdma(verbs) => {
                (verbs.context().as_ptr().cast(), verbs.protection_domain().as_ptr().cast())
            }
            _ => (null_mut(), null_mut()),
        };
        let made = pair.made.iter().flat_map(described);
        // The name's text stays where it is: devices are never dropped.
        made.map(move |part| Described { device: name.as_ptr(), context, protection_domain: domain, ..part })
    });
    parts.skip(index).take(1).last()
}

fn span_of(buffer: &HostBuffer) -> Span {
    Span::new(buffer.as_ptr().as_ptr() as usize, buffer.len()).expect("a buffer has bytes")
}
