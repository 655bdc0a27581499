//! The registrations of a segment with devices.

use std::sync::{Arc, Mutex, RwLock};
use std::time::{Duration, Instant};

use hostbuf_os::poison::IgnorePoison;
use hostbuf_register::{Access, Device, DeviceName, Registration, Span};

use crate::adopt::{AdoptError, process_adopter};
use crate::dma::CopyReason;
use crate::segment::DataView;

/// The time for which a device is not asked again after its first refusal.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// The longest such time.
const LAST_PAUSE: Duration = Duration::from_secs(64);

/// The registrations of a segment's blocks, at most one for each device. A registration covers all
/// blocks, is for reading, and is made at the first request.
#[derive(Debug, Default)]
pub(super) struct SegmentRegistrations {
    made: RwLock<Vec<MadeRegistration>>,
    /// The lock of a thread that registers.
    registering: Mutex<()>,
}

#[derive(Debug)]
struct MadeRegistration {
    device: DeviceName,
    /// The device address of the first block, or the device's refusal.
    result: Result<DeviceAddresses, RegistrationRefusal>,
}

/// A device's refusal to register a segment.
#[derive(Debug)]
struct RegistrationRefusal {
    why: CopyReason,
    since: Instant,
    /// The time for which the device is not asked again.
    pause: Duration,
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
    /// [`CopyReason`]. A device that has refused the segment twice in a row is asked again after a
    /// second, and after twice that time whenever it refuses again: its memory may have been short.
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
        // A registration fails now and then while the kernel moves pages.
        let result = register(device, data).or_else(|_| register(device, data));
        let mut made = self.made.write().ignore_poison();
        let before = made.iter().position(|made| made.device == *device).map(|at| made.swap_remove(at));
        let result = result.map_err(|why| RegistrationRefusal {
            why,
            since: Instant::now(),
            pause: before.map_or(FIRST_PAUSE, |before| before.next_pause()),
        });
        let made_now = MadeRegistration { device: device.clone(), result };
        let first = made_now.first();
        made.push(made_now);
        first.map(|first| first + offset)
    }

    fn find(&self, device: &DeviceName) -> Option<Result<u64, CopyReason>> {
        let made = self.made.read().ignore_poison();
        made.iter()
            .find(|made| made.device == *device && !made.is_to_be_tried_again())
            .map(MadeRegistration::first)
    }
}

impl MadeRegistration {
    fn first(&self) -> Result<u64, CopyReason> {
        self.result.as_ref().map(|addresses| addresses.first).map_err(|refusal| refusal.why.clone())
    }

    fn is_to_be_tried_again(&self) -> bool {
        self.result.as_ref().is_err_and(|refusal| refusal.since.elapsed() >= refusal.pause)
    }

    /// Returns the pause after a further refusal.
    fn next_pause(&self) -> Duration {
        self.result.as_ref().map_or_else(|refusal| (refusal.pause * 2).min(LAST_PAUSE), |_| FIRST_PAUSE)
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
