//! The registrations of a segment with devices.

use std::sync::{Arc, Mutex, RwLock};

use hostbuf_os::poison::IgnorePoison;
use hostbuf_register::{Access, Device, DeviceName, Registration, Span};

use crate::adopt::{AdoptError, process_adopter};
use crate::dma::CopyReason;
use crate::segment::DataView;

/// The registrations of a segment's blocks, at most one for each device. A registration is made
/// when it is first asked for, of all blocks, and for reading.
#[derive(Debug, Default)]
pub(super) struct SegmentRegistrations {
    made: RwLock<Vec<MadeRegistration>>,
    /// The lock of a thread that registers.
    registering: Mutex<()>,
}

#[derive(Debug)]
struct MadeRegistration {
    device: DeviceName,
    /// The device address of the first block, or the reason why there is none.
    result: Result<DeviceAddresses, CopyReason>,
}

#[derive(Debug)]
struct DeviceAddresses {
    first: u64,
    /// The registration ends with the segment, and keeps its mapping until then.
    _registration: Registration<Device>,
}

impl SegmentRegistrations {
    /// Returns the device address of the byte at `offset` in the segment.
    ///
    /// # Errors
    /// [`CopyReason`]. A device that has refused the segment is not asked again.
    pub(super) fn address(
        &self,
        device: &DeviceName,
        data: &Arc<DataView>,
        offset: u64,
    ) -> Result<u64, CopyReason> {
        if let Some(found) = self.find(device) {
            return found.map(|first| first + offset);
        }
        let _registering = self.registering.lock().ignore_poison();
        if let Some(found) = self.find(device) {
            return found.map(|first| first + offset);
        }
        let result = register(device, data);
        let first = result.as_ref().map(|addresses| addresses.first).map_err(Clone::clone);
        self.made.write().ignore_poison().push(MadeRegistration { device: device.clone(), result });
        first.map(|first| first + offset)
    }

    fn find(&self, device: &DeviceName) -> Option<Result<u64, CopyReason>> {
        let made = self.made.read().ignore_poison();
        let found = made.iter().find(|made| made.device == *device)?;
        Some(found.result.as_ref().map(|addresses| addresses.first).map_err(Clone::clone))
    }
}

fn register(device: &DeviceName, data: &Arc<DataView>) -> Result<DeviceAddresses, CopyReason> {
    // The device that adopted memory is registered with, so that a process opens it once.
    let adopter = process_adopter(device).map_err(|error| match error {
        AdoptError::Forked => CopyReason::Forked,
        other => CopyReason::NoDevice(other.to_string()),
    })?;
    let unregistered = |error: hostbuf_register::Error| CopyReason::Unregistered(error.to_string());
    let (start, length) = data.range();
    let span = Span::new(start, length).map_err(|error| unregistered(error.into()))?;
    let registrar = adopter.registrar();
    let registration = Registration::with_keepalive(registrar, span, Access::READ, data.clone());
    let registration = registration.map_err(unregistered)?;
    let mut parts = registrar.parts(span, registration.handle()).into_iter();
    match (parts.next(), parts.next()) {
        (Some(part), None) => {
            // A device without addresses of its own uses those of the process.
            let first = if part.key.address == 0 { start as u64 } else { part.key.address };
            Ok(DeviceAddresses { first, _registration: registration })
        }
        _ => Err(CopyReason::Unregistered("the device has no single address range for it".into())),
    }
}
