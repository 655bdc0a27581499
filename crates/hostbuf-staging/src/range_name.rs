//! The names of ranges in the timeline of a profiler.

/// The name of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RangeName {
    /// `read piece`: a thread reads a piece of a file.
    ReadPiece,
    /// `write piece`: a thread writes a piece to a file.
    WritePiece,
    /// `copy to device`: a device copies a slot to its memory.
    CopyToDevice,
    /// `copy to host`: a device copies to a slot.
    CopyToHost,
    /// `wait for slot`: a thread waits until a slot is free.
    WaitForSlot,
    /// `wait for device`: a thread waits for a copy of the device.
    WaitForDevice,
}
