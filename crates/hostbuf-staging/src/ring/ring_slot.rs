//! A slot: a part of the ring's memory, and what happens there now.

#![allow(unsafe_code, reason = "the state of a slot says which threads may access its parts")]

use std::cell::UnsafeCell;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::profiler_range::ProfilerRange;
use crate::slot_word::{ClaimedPiece, OwnedSlot, SlotWord};
use crate::transfer::TransferState;

/// The chunk that a slot moves in its present turn.
#[derive(Debug)]
pub(super) struct SlotRecord {
    pub(super) transfer: Arc<TransferState>,
    /// The number of the chunk in the transfer.
    pub(super) number: u64,
}

/// A slot.
#[derive(Debug)]
pub(super) struct RingSlot<E> {
    pub(super) state: SlotWord,
    /// Recorded after the copy of the slot.
    pub(super) event: E,
    /// The place of the last copy in the order of all copies of the ring.
    copied: AtomicU64,
    /// The number of the last copy, if a stream does the copies of the transfer.
    stream_copy: AtomicU32,
    record: UnsafeCell<Option<SlotRecord>>,
    /// The range of the copy, in the timeline of a profiler.
    copy_range: UnsafeCell<Option<ProfilerRange>>,
    memory: NonNull<u8>,
    bytes: usize,
}

// SAFETY: only the owner of the slot writes the record, and only threads with a piece read it; no
// thread has both at a time. The same holds for the memory, which exists as long as the ring. Only
// the owner accesses the range.
unsafe impl<E: Send + Sync> Sync for RingSlot<E> {}
// SAFETY: the parts may be used by any thread.
unsafe impl<E: Send> Send for RingSlot<E> {}

impl<E> RingSlot<E> {
    /// Makes a free slot.
    ///
    /// # Safety
    /// Nobody else accesses the `bytes` of memory as long as the slot exists.
    pub(super) unsafe fn new(memory: NonNull<u8>, bytes: usize, event: E) -> RingSlot<E> {
        let (state, record, copy_range) = (SlotWord::new(), UnsafeCell::new(None), UnsafeCell::new(None));
        let (copied, stream_copy) = (AtomicU64::new(0), AtomicU32::new(0));
        RingSlot { state, event, copied, stream_copy, record, copy_range, memory, bytes }
    }

    /// Returns the record of the present turn.
    ///
    /// # Panics
    /// If there is none: the owner sets it first.
    pub(super) fn record_of_piece(&self, _piece: &ClaimedPiece<'_>) -> &SlotRecord {
        // SAFETY: nobody owns the slot before the piece is finished.
        unsafe { &*self.record.get() }.as_ref().expect("a slot with pieces has a record")
    }

    /// Returns the record of the present turn.
    ///
    /// # Panics
    /// As [`record_of_piece`](RingSlot::record_of_piece).
    pub(super) fn record<'a>(&'a self, _owned: &'a OwnedSlot<'_>) -> &'a SlotRecord {
        // SAFETY: the caller owns the slot.
        unsafe { &*self.record.get() }.as_ref().expect("a slot in its turn has a record")
    }

    /// Sets the record of the turn that begins, or takes that of the turn that ends.
    pub(super) fn replace_record(
        &self,
        _owned: &mut OwnedSlot<'_>,
        record: Option<SlotRecord>,
    ) -> Option<SlotRecord> {
        // SAFETY: the caller owns the slot, and has no reference to the record.
        std::mem::replace(unsafe { &mut *self.record.get() }, record)
    }

    /// Begins or ends the range of the copy.
    pub(super) fn set_copy_range(&self, _owned: &mut OwnedSlot<'_>, range: Option<ProfilerRange>) {
        // SAFETY: the caller owns the slot, and nobody has a reference to the range.
        unsafe { *self.copy_range.get() = range };
    }

    /// Returns the memory of a piece.
    ///
    /// # Panics
    /// If `range` is not within the slot.
    ///
    /// # Safety
    /// `range` is within the piece, and the caller has no other reference to it.
    pub(super) unsafe fn piece_memory<'p>(
        &'p self,
        _piece: &'p mut ClaimedPiece<'_>,
        range: Range<usize>,
    ) -> &'p mut [u8] {
        assert!(range.start <= range.end && range.end <= self.bytes, "a piece lies within its slot");
        // SAFETY: the memory was initialised when it was mapped; no other thread accesses the
        // piece.
        unsafe { std::slice::from_raw_parts_mut(self.memory.add(range.start).as_ptr(), range.len()) }
    }

    /// Returns the memory for a copy of the device.
    ///
    /// # Panics
    /// If `range` is not within the slot.
    pub(super) fn copied_memory(&self, _owned: &OwnedSlot<'_>, range: Range<usize>) -> *mut [u8] {
        assert!(range.start <= range.end && range.end <= self.bytes, "a copy lies within its slot");
        // SAFETY: within the slot.
        let start = unsafe { self.memory.add(range.start) };
        std::ptr::slice_from_raw_parts_mut(start.as_ptr(), range.len())
    }

    /// Returns the place of the last copy in the order of all copies.
    pub(super) fn copied(&self) -> u64 {
        self.copied.load(Ordering::Relaxed)
    }

    /// Sets the place of the copy.
    pub(super) fn set_copied(&self, _owned: &OwnedSlot<'_>, place: u64) {
        self.copied.store(place, Ordering::Relaxed);
    }

    /// Returns the number that the last copy has for the stream that does it.
    pub(super) fn stream_copy(&self) -> u32 {
        self.stream_copy.load(Ordering::Relaxed)
    }

    /// Sets the number that a copy has for the stream that does it.
    pub(super) fn set_stream_copy(&self, _owned: &OwnedSlot<'_>, number: u32) {
        self.stream_copy.store(number, Ordering::Relaxed);
    }

    /// Keeps what the record has for ever, since a device may access it.
    pub(super) fn abandon_record(&mut self) {
        std::mem::forget(self.record.get_mut().take());
    }
}
