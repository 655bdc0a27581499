//! Copies of slices to a device, window by window.

#![allow(unsafe_code, reason = "starts copies of a device, and waits for their end")]

use std::collections::BTreeMap;
use std::mem::{forget, take};

use hostbuf_staging::{CopyDevice, DeviceCopy, DeviceError, TransferError, TransferPart};

use crate::error::LoadError;
use crate::progress::LoadProgress;
use crate::shared::LoadedRegion;
use crate::slice_target::SliceTarget;
use crate::tensors::Tensors;

/// A copy from a window of the region of a load to the device.
#[derive(Clone, Copy)]
struct RegionCopy {
    /// The offset in the region.
    offset: u64,
    bytes: u64,
    /// The device's address.
    address: u64,
}

/// Copies of tensors, or of slices of them, from the buffer of a load to a device. The copies of a
/// window start once it has been read.
pub(super) struct WindowCopies<'d, D: CopyDevice> {
    device: &'d D,
    /// Keeps the buffer mapped.
    region: LoadedRegion,
    /// Keep the memory of the device.
    targets: Vec<SliceTarget>,
    /// The copies that have not started, by the number of their window.
    missing: BTreeMap<u64, Vec<RegionCopy>>,
    /// One for each call that has started copies.
    events: Vec<D::Event>,
    bytes: u64,
    failed: Option<LoadError>,
    is_lost: bool,
}

impl<'d, D: CopyDevice> WindowCopies<'d, D> {
    /// Plans the copies.
    ///
    /// # Errors
    /// [`LoadError::NoTensor`] and [`LoadError::Target`].
    pub(super) fn new(
        device: &'d D,
        tensors: &Tensors,
        targets: Vec<SliceTarget>,
    ) -> Result<WindowCopies<'d, D>, LoadError> {
        let (table, region) = (tensors.table(), tensors.region().clone());
        let window_bytes = region.root().window_bytes;
        let (mut missing, mut bytes) = (BTreeMap::<u64, Vec<RegionCopy>>::new(), 0);
        for target in &targets {
            let entry = target.entry(table)?;
            let file = table.files().get(entry.file).ok_or(LoadError::Damaged)?;
            for TransferPart { offset, target, .. } in target.parts(entry)? {
                let mut copy = RegionCopy {
                    offset: file.region_offset + offset,
                    bytes: target.bytes(),
                    address: target.address(),
                };
                bytes += copy.bytes;
                while copy.bytes > 0 {
                    let window = copy.offset / window_bytes;
                    let length = copy.bytes.min((window + 1) * window_bytes - copy.offset);
                    missing.entry(window).or_default().push(RegionCopy { bytes: length, ..copy });
                    copy.offset += length;
                    copy.address += length;
                    copy.bytes -= length;
                }
            }
        }
        let (events, failed) = (Vec::new(), None);
        Ok(WindowCopies { device, region, targets, missing, events, bytes, failed, is_lost: false })
    }

    /// Starts the copies of the windows that have become ready since the last call, without waiting
    /// for the device. Nothing starts after a failure.
    pub(super) fn start_ready(&mut self, progress: &LoadProgress) {
        if self.failed.is_some() {
            return;
        }
        let mut copies = Vec::new();
        self.missing.retain(|&window, in_window| {
            let is_ready = progress.is_window_ready(window);
            if is_ready {
                copies.extend(in_window.iter().map(|&RegionCopy { offset, bytes, address }| {
                    let host = self.region.start(offset..offset + bytes).cast_mut();
                    DeviceCopy { host, bytes: bytes as usize, address }
                }));
            }
            !is_ready
        });
        let Some(first) = copies.first() else { return };
        match self.device.new_event() {
            Ok(event) => {
                // SAFETY: nothing writes to a window that is ready, and both sides stay allocated
                // until the copies have ended: `end` waits for them, or keeps both.
                let started = unsafe { self.device.copy_to_device(&copies, &event) };
                self.events.push(event);
                if let Err(error) = started {
                    if !error.has_started() {
                        self.events.pop();
                    }
                    self.fail(first.address, error);
                }
            }
            Err(error) => self.fail(first.address, error),
        }
    }

    /// Waits for all copies. Returns the number of bytes.
    ///
    /// # Errors
    /// [`LoadError::Transfer`]; [`LoadError::Damaged`] if a window is not ready, which a process has
    /// overwritten.
    pub(super) fn finish(mut self) -> Result<u64, LoadError> {
        self.end();
        match self.failed.take() {
            Some(error) => Err(error),
            None if !self.missing.is_empty() => Err(LoadError::Damaged),
            None => Ok(self.bytes),
        }
    }

    fn fail(&mut self, address: u64, source: DeviceError) {
        self.is_lost |= source.is_lost();
        self.failed.get_or_insert(TransferError::Device { address, source, landed: 0 }.into());
    }

    /// Waits until the device accesses neither side, or keeps both if it is lost.
    fn end(&mut self) {
        let events = take(&mut self.events);
        for event in &events {
            if self.is_lost {
                break;
            }
            if let Err(error) = self.device.wait(event) {
                let address = self.targets.first().map_or(0, |target| target.target.address());
                self.fail(address, error);
            }
        }
        if self.is_lost {
            forget((self.region.clone(), take(&mut self.targets), events));
        }
    }
}

impl<D: CopyDevice> Drop for WindowCopies<'_, D> {
    fn drop(&mut self) {
        self.end();
    }
}
