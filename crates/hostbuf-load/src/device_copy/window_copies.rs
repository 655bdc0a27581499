//! Copies of slices to a device, window by window.

#![allow(unsafe_code, reason = "starts copies of windows that nothing writes to")]

use std::borrow::Cow;
use std::collections::BTreeMap;

use hostbuf_staging::CopyDevice;

use super::queued_copies::QueuedCopies;
use super::region_rows::RegionRows;
use super::started_copies::StartedCopies;
use crate::copy_times::CopyTimes;
use crate::error::LoadError;
use crate::progress::LoadProgress;
use crate::slice_target::SliceTarget;
use crate::tensors::Tensors;

/// The plan of the copies of tensors, or of slices of them, to a device during a load. The copies
/// of a window start once it has been read.
pub(super) struct WindowCopies<'d, D: CopyDevice> {
    /// The copies that have not started, by the number of their window.
    missing: BTreeMap<u64, Vec<RegionRows>>,
    started: StartedCopies<'d, D>,
    times: CopyTimes,
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
        let mut missing = BTreeMap::<u64, Vec<RegionRows>>::new();
        for target in &targets {
            let entry = target.checked(table)?;
            let (start, address) = (table.region_offset(entry), target.target.address());
            for part in target.strided_parts(entry) {
                let rows = RegionRows::new(&part, start, address);
                rows.divide(window_bytes, |window, rows| missing.entry(window).or_default().push(rows));
            }
        }
        let started = StartedCopies::new(device, region, Cow::Owned(targets));
        Ok(WindowCopies { missing, started, times: CopyTimes::default() })
    }

    /// Starts the copies of the windows that have become ready since the last call, without waiting
    /// for the device. Nothing starts after a failure.
    pub(super) fn start_ready(&mut self, progress: &LoadProgress) {
        if self.started.has_failed() {
            return;
        }
        self.times.observe(self.started.are_running(), progress);
        let (mut queued, region) = (QueuedCopies::default(), self.started.region());
        self.missing.retain(|&window, in_window| {
            let is_ready = progress.is_window_ready(window);
            if is_ready {
                in_window.iter().for_each(|rows| queued.push(region, rows));
            }
            !is_ready
        });
        let starts = !queued.is_empty();
        // SAFETY: nothing writes to a window that is ready.
        unsafe { self.started.start(&mut queued) };
        // A device may copy while it is called, so that the next windows are ready meanwhile.
        let is_behind = progress.is_any_ready(self.missing.keys());
        self.times.observe(starts && is_behind, progress);
    }

    /// Waits for all copies. Returns their times.
    ///
    /// # Errors
    /// [`LoadError::Transfer`]; [`LoadError::Damaged`] if a window is not ready: another process
    /// has overwritten its word.
    pub(super) fn finish(mut self, progress: &LoadProgress) -> Result<CopyTimes, LoadError> {
        let are_running = self.started.are_running();
        self.times.bytes_copied = self.started.finish()?;
        self.times.observe(are_running, progress);
        if self.missing.is_empty() { Ok(self.times) } else { Err(LoadError::Damaged) }
    }
}
