//! The free slots of a ring, of which one may be reserved.

use std::sync::atomic::{Ordering, fence};

use super::ring_core::RingCore;
use super::ring_slot::{RingSlot, SlotRecord};
use crate::device::{CopyDevice, DeviceError};
use crate::slot_word::OwnedSlot;

impl<D: CopyDevice> RingCore<D> {
    /// Takes a free slot for any transfer.
    pub(super) fn open_slot(&self) -> Option<(&RingSlot<D::Event>, OwnedSlot<'_>)> {
        if self.held.is_reserving() {
            return None;
        }
        let is_reserved = |index| self.held.reserved() == Some(index);
        let mut slots = self.slots.iter().enumerate().filter(|&(index, _)| !is_reserved(index));
        slots.find_map(|(index, slot)| {
            let owned = slot.state.open()?;
            // It may have been reserved before it was opened.
            if is_reserved(index) {
                owned.free();
                self.notify_of_free_slot();
                return None;
            }
            Some((slot, owned))
        })
    }

    /// Takes the reserved slot for a chunk of the oldest transfer for which a stream waits, if the
    /// transfer has one to begin.
    pub(super) fn open_reserved_slot(&self) -> Option<(&RingSlot<D::Event>, OwnedSlot<'_>, SlotRecord)> {
        let slot = &self.slots[self.held.reserved()?];
        if !slot.state.is_free() {
            return None;
        }
        let transfer = self.held.oldest().filter(|oldest| oldest.has_begun())?;
        let owned = slot.state.open()?;
        match transfer.begin_chunk() {
            Some(number) => Some((slot, owned, SlotRecord { transfer, number })),
            None => {
                owned.free();
                None
            }
        }
    }

    /// Reserves a slot, unless one is. Waits until one is free, or the ring ends.
    ///
    /// # Errors
    /// [`DeviceError`] for a ring of one slot.
    pub(super) fn reserve_slot(&self) -> Result<(), DeviceError> {
        if self.slots.len() == 1 {
            let why = "a ring of one slot cannot order transfers by streams: make it with at least two";
            return Err(DeviceError::refused(self.device.name(), "ordering a transfer by a stream", why));
        }
        if self.held.reserved().is_some() {
            return Ok(());
        }
        let reserving = self.held.begin_reserving();
        loop {
            let epoch = self.signal.epoch();
            // Either this thread finds a free slot, or the thread that frees one sees this one.
            fence(Ordering::SeqCst);
            if self.held.reserved().is_some() || !self.is_usable() {
                break;
            }
            let mut slots = self.slots.iter().enumerate();
            if let Some((index, owned)) = slots.find_map(|(index, slot)| Some((index, slot.state.open()?))) {
                self.held.reserve(index);
                owned.free();
                break;
            }
            self.signal.wait(epoch);
        }
        drop(reserving);
        self.signal.notify();
        Ok(())
    }
}
