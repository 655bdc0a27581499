//! Copies from a region to a device that have not started.

use hostbuf_staging::{DeviceCopy, DeviceRows};

use super::region_rows::RegionRows;
use crate::shared::LoadedRegion;

/// The number of copies that start together. The device copies them while the next ones are
/// prepared.
const COPIES_A_START: usize = 512;

/// The copies from a region to a device that have not started: single ranges, and rows.
#[derive(Debug, Default)]
pub(super) struct QueuedCopies {
    pub(super) copies: Vec<DeviceCopy>,
    pub(super) rows: Vec<DeviceRows>,
}

impl QueuedCopies {
    /// Adds the copies of rows.
    ///
    /// # Panics
    /// If the rows are not within the region.
    pub(super) fn push(&mut self, region: &LoadedRegion, from: &RegionRows) {
        let end = from.offset.saturating_add(from.extent());
        let rows = DeviceRows {
            host: region.start(from.offset..end).cast_mut(),
            host_pitch: from.pitch as usize,
            address: from.address,
            pitch: from.address_pitch as usize,
            width: from.width as usize,
            height: from.height as usize,
        };
        match from.is_rows() {
            true => self.rows.push(rows),
            false => self.copies.extend(rows.copies()),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.copies.is_empty() && self.rows.is_empty()
    }

    /// Returns whether as many copies are queued as start together.
    pub(super) fn is_full(&self) -> bool {
        self.copies.len() + self.rows.len() >= COPIES_A_START
    }
}
