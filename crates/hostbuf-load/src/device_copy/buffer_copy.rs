//! Copies from a buffer to a device.

#![allow(unsafe_code, reason = "starts copies of a device, and waits for their end")]

use hostbuf_staging::{CopyDevice, DeviceCopy, DeviceError, TransferError};

use crate::error::LoadError;
use crate::slice_target::SliceTarget;
use crate::tensors::Tensors;

impl Tensors {
    /// Copies tensors, or slices of them, from the buffer to memory of a device, and waits for the
    /// end. The device copies at full speed if the buffer is registered with it. Returns the number
    /// of bytes.
    ///
    /// # Errors
    /// [`LoadError::NoTensor`] and [`LoadError::Target`] before anything is copied;
    /// [`LoadError::Transfer`]. A device that is lost may still read the buffer, so this process
    /// then keeps the buffer, and the memory of the targets, until it ends.
    pub fn copy_to_device<D: CopyDevice>(
        &self,
        device: &D,
        targets: &[SliceTarget],
    ) -> Result<u64, LoadError> {
        let mut copies = Vec::new();
        for target in targets {
            let entry = target.entry(self.table())?;
            let file = self.file_bytes(entry.file).ok_or(LoadError::Damaged)?;
            for part in target.parts(entry)? {
                let host = file[part.offset as usize..].as_ptr().cast_mut();
                let (bytes, address) = (part.target.bytes() as usize, part.target.address());
                copies.push(DeviceCopy { host, bytes, address });
            }
        }
        let of_first = |error| failed(copies.first(), error);
        let event = device.new_event().map_err(of_first)?;
        // SAFETY: the buffer is filled, so nothing writes to it, and both sides stay allocated
        // until the copies have ended: this waits for them, or keeps both.
        let started = unsafe { device.copy_to_device(&copies, &event) };
        let waited = match &started {
            Err(error) if error.is_lost() || !error.has_started() => Ok(()),
            _ => device.wait(&event),
        };
        if [&started, &waited].iter().any(|result| result.as_ref().is_err_and(DeviceError::is_lost)) {
            std::mem::forget((self.buffer().clone(), targets.to_vec(), event));
        }
        started.and(waited).map_err(of_first)?;
        Ok(copies.iter().map(|copy| copy.bytes as u64).sum())
    }
}

/// Returns the error of copies of which this is the first.
fn failed(copy: Option<&DeviceCopy>, source: DeviceError) -> LoadError {
    let address = copy.map_or(0, |copy| copy.address);
    TransferError::Device { address, source, landed: 0 }.into()
}
