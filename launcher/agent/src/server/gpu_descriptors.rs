//! The descriptors of the GPU sections.

use std::os::fd::OwnedFd;

/// The GPU sections of a job on this host.
#[derive(Debug, Default)]
pub(super) struct GpuDescriptors {
    /// The address of their range, once all ranks of the job hold it.
    pub(super) address: Option<u64>,
    /// The rank that creates them.
    pub(super) creator: Option<u64>,
    /// The number of pieces.
    pub(super) pieces: usize,
    /// The descriptors of the pieces, none before a rank has created them.
    pub(super) descriptors: Vec<OwnedFd>,
}
