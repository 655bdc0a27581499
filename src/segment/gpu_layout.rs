//! The GPU sections of a job, in a range of addresses of their own.
//!
//! ```text
//! address of the range                                              address + length
//!   | section "a": piece on GPU 0 | piece on GPU 1 | section "b": piece on GPU 0 |
//! ```
//!
//! Every piece is memory of one GPU, and has a descriptor of its own, since CUDA maps memory from
//! its first byte only.

use crate::error::{Bytes, Error, Result};
use crate::segment::gpu_piece::GpuPiece;
use crate::segment::options::{BufferOptions, MAX_SIZE};
use crate::segment::section::{self, MAX_GPU_PIECES};

/// The unit of the pieces in bytes: the granularity of the memory of all GPUs that are known.
pub const GPU_UNIT: u64 = 2 << 20;
/// The alignment of the address of GPU sections in bytes. The CUDA driver takes addresses from the
/// process in blocks of this size, and grants no other address of choice (seen with driver 580).
pub const GPU_ADDRESS_ALIGNMENT: u64 = 32 << 20;
/// The maximum number of GPU sections of a job: each has a bit in the control page.
pub const MAX_GPU_SECTIONS: usize = 32;

/// Returns the pieces of all GPU sections of `buffers`, in the order of their addresses.
#[must_use]
pub fn gpu_pieces(buffers: &[BufferOptions]) -> Vec<GpuPiece> {
    let mut pieces = Vec::new();
    let mut at = 0;
    for (buffer, options) in buffers.iter().enumerate() {
        for section in options.sections.iter().filter(|section| section.is_on_gpus()) {
            let parts = section.gpus.len() as u64;
            // Each GPU of the list holds at least one unit.
            let units = section.size.div_ceil(GPU_UNIT).max(parts);
            for (i, &gpu) in (0..parts).zip(&section.gpus) {
                let length = (units / parts + u64::from(i < units % parts)) * GPU_UNIT;
                pieces.push(GpuPiece::new(buffer, &section.name, gpu, at, length));
                at += length;
            }
        }
    }
    pieces
}

/// Returns the length of the range of these pieces in bytes.
#[must_use]
pub fn gpu_range_length(pieces: &[GpuPiece]) -> u64 {
    pieces.last().map_or(0, |last| last.offset + last.length)
}

/// Checks the GPU sections of all buffers of a job.
///
/// # Errors
/// [`Error::Invalid`] for too many sections or pieces, and for a sum of sizes beyond any address
/// space.
pub(super) fn check(buffers: &[BufferOptions]) -> Result<()> {
    let sections = || buffers.iter().flat_map(|buffer| &buffer.sections).filter(|s| s.is_on_gpus());
    let (count, pieces) = (sections().count(), sections().map(|section| section.gpus.len()).sum::<usize>());
    if count > MAX_GPU_SECTIONS {
        return Err(Error::invalid(format!(
            "{count} GPU sections: expected at most {MAX_GPU_SECTIONS} in all buffers: put several tables into one section"
        )));
    }
    if pieces > MAX_GPU_PIECES {
        return Err(Error::invalid(format!(
            "the GPU sections list {pieces} GPUs: expected at most {MAX_GPU_PIECES} in all sections: list fewer in gpu="
        )));
    }
    let sum = sections().fold(0u64, |sum, section| sum.saturating_add(section.size));
    if sum > MAX_SIZE / 2 {
        return Err(Error::invalid(format!(
            "the GPU sections need {}: the address space has room for at most {}: request less",
            section::bytes(sum),
            Bytes(MAX_SIZE / 2)
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Section;

    fn pieces(sections: &[(u64, &[u32])]) -> Vec<(u32, u64, u64)> {
        let add = |options: BufferOptions, (i, (size, gpus)): (usize, &(u64, &[u32]))| {
            options.section(Section::new(format!("s{i}"), *size).gpus(gpus.iter().copied()))
        };
        let buffer = sections.iter().enumerate().fold(BufferOptions::new(4096), add);
        let pieces = gpu_pieces(&[BufferOptions::new(1), buffer.name("b")]);
        assert!(pieces.iter().all(|piece| piece.buffer == 1));
        pieces.iter().map(|piece| (piece.gpu, piece.offset / GPU_UNIT, piece.length / GPU_UNIT)).collect()
    }

    #[test]
    fn a_section_is_divided_among_its_gpus_in_whole_units() {
        assert_eq!(pieces(&[(4096, &[])]), []);
        assert_eq!(pieces(&[(1, &[3])]), [(3, 0, 1)]);
        assert_eq!(pieces(&[(5 * GPU_UNIT, &[0, 1])]), [(0, 0, 3), (1, 3, 2)]);
        assert_eq!(pieces(&[(1, &[0, 1, 0])]), [(0, 0, 1), (1, 1, 1), (0, 2, 1)]);
        assert_eq!(
            pieces(&[(4096, &[]), (GPU_UNIT + 1, &[1]), (1, &[0])]),
            [(1, 0, 2), (0, 2, 1)],
            "host memory takes no room"
        );
    }

    #[test]
    fn the_range_ends_behind_the_last_piece() {
        let buffer = BufferOptions::new(1).section(Section::new("a", 5 * GPU_UNIT).gpus([0, 1]));
        assert_eq!(gpu_range_length(&gpu_pieces(&[buffer])), 5 * GPU_UNIT);
        assert_eq!(gpu_range_length(&[]), 0);
    }

    #[test]
    fn too_many_sections_and_pieces_are_refused() {
        let buffer = |sections: usize, size: u64, gpus: usize| {
            (0..sections).fold(BufferOptions::new(1), |options, i| {
                options.section(Section::new(format!("s{i}"), size).gpus(vec![0; gpus]))
            })
        };
        assert!(check(&[buffer(32, 1, 4)]).is_ok());
        for (sections, size, gpus, words) in [
            (33, 1, 1, "33 GPU sections: expected at most 32 in all buffers: put several tables into one"),
            (2, 1, 65, "list 130 GPUs: expected at most 128 in all sections: list fewer"),
            (2, MAX_SIZE, 1, "the address space has room for at most 50 TiB: request less"),
        ] {
            let error = check(&[buffer(sections, size, gpus)]).expect_err("refused").to_string();
            assert!(error.contains(words), "{error}");
        }
    }
}
