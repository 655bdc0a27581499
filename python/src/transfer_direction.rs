//! The direction of a transfer.

use hostbuf_staging::{CopyDevice, DeviceTarget, Ring, StreamDevice, Transfer};

use crate::transfer_file::TransferFile;

/// The direction of a transfer.
#[derive(Clone, Copy)]
pub enum TransferDirection {
    Read,
    Write,
}

impl TransferDirection {
    /// Starts a transfer.
    pub fn start<D: CopyDevice>(
        self,
        ring: &Ring<D>,
        file: &TransferFile,
        target: DeviceTarget,
        offset: u64,
    ) -> Transfer {
        match self {
            TransferDirection::Read => file.file.pread(ring, target, offset),
            TransferDirection::Write => file.file.pwrite(ring, target, offset),
        }
    }

    /// Starts a transfer in the order of a stream.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "only GPUs have streams"))]
    pub fn start_on<D: StreamDevice>(
        self,
        ring: &Ring<D>,
        file: &TransferFile,
        stream: &D::Stream,
        target: DeviceTarget,
        offset: u64,
    ) -> Transfer {
        match self {
            TransferDirection::Read => file.file.pread_on(ring, stream, target, offset),
            TransferDirection::Write => file.file.pwrite_on(ring, stream, target, offset),
        }
    }

    /// Starts a transfer after the present work of a stream.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "only GPUs have streams"))]
    pub fn start_after<D: StreamDevice>(
        self,
        ring: &Ring<D>,
        file: &TransferFile,
        stream: &D::Stream,
        target: DeviceTarget,
        offset: u64,
    ) -> Transfer {
        match self {
            TransferDirection::Read => file.file.pread_after(ring, stream, target, offset),
            TransferDirection::Write => file.file.pwrite_after(ring, stream, target, offset),
        }
    }
}
