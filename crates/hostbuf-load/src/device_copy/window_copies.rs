//! Copies of slices to a device, window by window.

#![allow(unsafe_code, reason = "starts copies of windows that nothing writes to")]

use std::borrow::Cow;
use std::collections::BTreeMap;

use hostbuf_staging::{CopyDevice, DeviceCopy};

use super::started_copies::StartedCopies;
use crate::error::LoadError;
use crate::progress::LoadProgress;
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

/// The plan of the copies of tensors, or of slices of them, to a device during a load. The copies
/// of a window start once it has been read.
pub(super) struct WindowCopies<'d, D: CopyDevice> {
    /// The copies that have not started, by the number of their window.
    missing: BTreeMap<u64, Vec<RegionCopy>>,
    started: StartedCopies<'d, D>,
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
        let mut missing = BTreeMap::<u64, Vec<RegionCopy>>::new();
        for target in &targets {
            let entry = target.checked(table)?;
            let start = table.region_offset(entry);
            for (row, at) in target.rows(entry) {
                let (mut offset, mut address) = (start + row.start, target.target.address() + at);
                let end = start + row.end;
                while offset < end {
                    let window = offset / window_bytes;
                    let bytes = end.min((window + 1) * window_bytes) - offset;
                    missing.entry(window).or_default().push(RegionCopy { offset, bytes, address });
                    offset += bytes;
                    address += bytes;
                }
            }
        }
        Ok(WindowCopies { missing, started: StartedCopies::new(device, region, Cow::Owned(targets)) })
    }

    /// Starts the copies of the windows that have become ready since the last call, without waiting
    /// for the device. Nothing starts after a failure.
    pub(super) fn start_ready(&mut self, progress: &LoadProgress) {
        if self.started.has_failed() {
            return;
        }
        let (mut copies, region) = (Vec::new(), self.started.region());
        self.missing.retain(|&window, in_window| {
            let is_ready = progress.is_window_ready(window);
            if is_ready {
                copies.extend(in_window.iter().map(|&RegionCopy { offset, bytes, address }| {
                    let host = region.start(offset..offset + bytes).cast_mut();
                    DeviceCopy { host, bytes: bytes as usize, address }
                }));
            }
            !is_ready
        });
        // SAFETY: nothing writes to a window that is ready.
        unsafe { self.started.start(&copies) };
    }

    /// Waits for all copies. Returns the number of bytes.
    ///
    /// # Errors
    /// [`LoadError::Transfer`]; [`LoadError::Damaged`] if a window is not ready: another process
    /// has overwritten its word.
    pub(super) fn finish(self) -> Result<u64, LoadError> {
        let bytes = self.started.finish()?;
        if self.missing.is_empty() { Ok(bytes) } else { Err(LoadError::Damaged) }
    }
}
