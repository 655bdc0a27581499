//! The descriptors of packets.

/// The descriptors that belong to a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Attached {
    /// None.
    Nothing,
    /// Those of the memory of the job.
    Memory,
    /// Those of the GPU sections.
    GpuMemory,
}
