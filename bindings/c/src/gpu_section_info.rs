//! The GPU sections of a buffer as C sees them.

use std::ffi::{CString, c_char};

use library::HostBuffer;
use library::segment::GpuPiece;

use crate::gpu_section_calls;

/// A section of a buffer on one or several GPUs. Its text and arrays are valid as long as the
/// buffer.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct hostbuf_gpu_section_info {
    /// The size of this structure: initialize it with `HOSTBUF_GPU_SECTION_INFO_INIT`.
    pub struct_size: usize,
    /// The name.
    pub name: *const c_char,
    /// The address of the first byte on the GPUs, a device pointer: the same in every rank of every
    /// host that uses GPUs.
    pub address: u64,
    /// The number of bytes: the requested size, rounded up to a multiple of 2 MiB, and at least 2
    /// MiB for each entry of `gpu=`.
    pub bytes: usize,
    /// The number of the GPU of each piece on its host, in the order of the PCI addresses.
    pub piece_gpus: *const u32,
    /// The number of bytes of each piece. The pieces are contiguous from `address` on.
    pub piece_bytes: *const u64,
    /// The number of pieces in the arrays, at least 1.
    pub piece_count: u32,
    /// 1 if the section has been frozen on this host, otherwise 0.
    pub frozen: i32,
}

/// The owner of the text and the arrays of a `hostbuf_gpu_section_info`.
pub struct OwnedGpuSection {
    name: CString,
    gpus: Vec<u32>,
    bytes: Vec<u64>,
}

impl OwnedGpuSection {
    /// Returns the GPU sections of a buffer, in the order of their addresses.
    pub fn all(buffer: &HostBuffer) -> Vec<OwnedGpuSection> {
        gpu_section_calls::pieces(buffer).iter().map(|pieces| OwnedGpuSection::new(pieces)).collect()
    }

    fn new(pieces: &[GpuPiece]) -> OwnedGpuSection {
        let name = pieces.first().map(|piece| piece.section.clone()).unwrap_or_default();
        OwnedGpuSection {
            // No name contains NUL.
            name: CString::new(name).unwrap_or_default(),
            gpus: pieces.iter().map(|piece| piece.gpu).collect(),
            bytes: pieces.iter().map(|piece| piece.length).collect(),
        }
    }

    /// Returns the name.
    pub fn name(&self) -> &CString {
        &self.name
    }

    /// Returns the section at an address with pointers to the text and arrays of this one.
    pub fn info(&self, address: u64, is_frozen: bool) -> hostbuf_gpu_section_info {
        hostbuf_gpu_section_info {
            struct_size: size_of::<hostbuf_gpu_section_info>(),
            name: self.name.as_ptr(),
            address,
            bytes: self.bytes.iter().sum::<u64>() as usize,
            piece_gpus: self.gpus.as_ptr(),
            piece_bytes: self.bytes.as_ptr(),
            piece_count: self.gpus.len() as u32,
            frozen: i32::from(is_frozen),
        }
    }
}
