//! Copies that have started, and their end.

#![allow(unsafe_code, reason = "starts copies of a device, and waits for their end")]

use std::borrow::Cow;
use std::mem::{forget, take};

use hostbuf_staging::{CopyDevice, DeviceError, DeviceRows, TransferError};

use super::queued_copies::QueuedCopies;
use crate::error::LoadError;
use crate::shared::LoadedRegion;
use crate::slice_target::SliceTarget;
use crate::table::{SourceFile, TensorTable};

/// A set of copies from the buffer of a load to a device. Dropping it waits for their end.
pub(super) struct StartedCopies<'d, D: CopyDevice> {
    device: &'d D,
    /// The region, which keeps the buffer mapped.
    region: LoadedRegion,
    /// The targets, which keep the memory of the device.
    targets: Cow<'d, [SliceTarget]>,
    /// One for each call that has started copies.
    calls: Vec<StartedCall<D::Event>>,
    bytes: u64,
    failed: Option<LoadError>,
    is_lost: bool,
}

/// A call that has started copies.
struct StartedCall<E> {
    /// Recorded after the copies.
    event: E,
    first: CopyPlace,
}

/// The place of the first byte of a copy.
#[derive(Clone, Copy)]
struct CopyPlace {
    /// The offset in the region.
    offset: u64,
    /// The device's address.
    address: u64,
}

impl<'d, D: CopyDevice> StartedCopies<'d, D> {
    /// Makes it without copies.
    pub(super) fn new(
        device: &'d D,
        region: LoadedRegion,
        targets: Cow<'d, [SliceTarget]>,
    ) -> StartedCopies<'d, D> {
        let (calls, bytes, failed) = (Vec::new(), 0, None);
        StartedCopies { device, region, targets, calls, bytes, failed, is_lost: false }
    }

    pub(super) fn region(&self) -> &LoadedRegion {
        &self.region
    }

    pub(super) fn has_failed(&self) -> bool {
        self.failed.is_some()
    }

    /// Returns whether the device has copies to do. An error of the device is found by
    /// [`finish`](StartedCopies::finish).
    pub(super) fn are_running(&self) -> bool {
        self.calls.last().is_some_and(|last| matches!(self.device.is_complete(&last.event), Ok(false)))
    }

    /// Starts the queued copies, without waiting for the device, and empties the queue. Nothing
    /// starts after a failure.
    ///
    /// # Safety
    /// The host memory is within the region, and nothing writes to it any more. The memory of the
    /// device is that of the targets.
    pub(super) unsafe fn start(&mut self, queued: &mut QueuedCopies) {
        let QueuedCopies { copies, rows } = queued;
        if let Some(first) = copies.first() {
            let bytes = copies.iter().map(|copy| copy.bytes as u64).sum();
            self.start_with(self.place(first.host, first.address), bytes, |device, done| {
                // SAFETY: the caller guarantees both sides, which stay allocated until the copies
                // have ended: `end` waits for them, or keeps both.
                unsafe { device.copy_to_device(copies, done) }
            });
        }
        if let Some(first) = rows.first() {
            let bytes = rows.iter().map(DeviceRows::bytes).sum();
            self.start_with(self.place(first.host, first.address), bytes, |device, done| {
                // SAFETY: as above.
                unsafe { device.copy_rows_to_device(rows, done) }
            });
        }
        copies.clear();
        rows.clear();
    }

    /// Returns the place of a copy from `host`, which is within the region.
    fn place(&self, host: *mut u8, address: u64) -> CopyPlace {
        CopyPlace { offset: host as u64 - self.region.start(0..0) as u64, address }
    }

    /// Starts copies of `bytes` bytes with a new event.
    fn start_with(
        &mut self,
        first: CopyPlace,
        bytes: u64,
        start: impl FnOnce(&D, &D::Event) -> Result<(), DeviceError>,
    ) {
        if self.has_failed() {
            return;
        }
        let event = match self.device.new_event() {
            Ok(event) => event,
            Err(error) => return self.fail(first, error),
        };
        match start(self.device, &event) {
            Ok(()) => {
                self.calls.push(StartedCall { event, first });
                self.bytes += bytes;
            }
            Err(error) => {
                if error.has_started() {
                    self.calls.push(StartedCall { event, first });
                }
                self.fail(first, error);
            }
        }
    }

    /// Waits for all copies. Returns the number of bytes.
    ///
    /// # Errors
    /// [`LoadError::Transfer`].
    pub(super) fn finish(mut self) -> Result<u64, LoadError> {
        self.end();
        self.failed.take().map_or(Ok(self.bytes), Err)
    }

    fn fail(&mut self, CopyPlace { offset, address }: CopyPlace, source: DeviceError) {
        self.is_lost |= source.is_lost();
        if !self.has_failed() {
            let (name, offset) = self.place_in_files(offset);
            self.failed = Some(TransferError::Device { name, offset, address, source, landed: 0 }.into());
        }
    }

    /// Returns the path of the file at an offset of the region, and the offset in the file.
    fn place_in_files(&self, offset: u64) -> (String, u64) {
        let table = TensorTable::decode(&self.region.table_copy()).unwrap_or_default();
        let contains = |file: &&SourceFile| (file.region_offset..file.region_end()).contains(&offset);
        table.files().iter().find(contains).map_or_else(
            || ("the loaded files".to_owned(), offset),
            |file| (file.path.display().to_string(), offset - file.region_offset),
        )
    }

    /// Waits until the device accesses neither side, or keeps both if it is lost.
    fn end(&mut self) {
        let calls = take(&mut self.calls);
        for call in &calls {
            if self.is_lost {
                break;
            }
            if let Err(error) = self.device.wait(&call.event) {
                self.fail(call.first, error);
            }
        }
        if self.is_lost {
            forget((self.region.clone(), self.targets.to_vec(), calls));
        }
    }
}

impl<D: CopyDevice> Drop for StartedCopies<'_, D> {
    fn drop(&mut self) {
        self.end();
    }
}
