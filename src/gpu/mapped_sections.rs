//! The GPU sections of a job, mapped in this process.

use std::os::fd::{AsFd, OwnedFd};

use crate::error::{Error, Result};
use crate::gpu::driver_error;
use crate::gpu::host_gpus::HostGpus;
use crate::segment::{GpuPiece, gpu_range_length};
use hostbuf_cuda::{CudaError, MappedMemory, PhysicalMemory, VirtualRange};
use hostbuf_os::{Bytes, OpenDescriptors, process};

/// The GPU sections of a job, mapped in this process. All GPUs of the process have access to them.
///
/// Dropping it unmaps them. The memory lives as long as a process has it mapped, or the agent of
/// the host holds its descriptors.
#[derive(Debug)]
pub struct MappedSections {
    mapped: MappedMemory,
}

impl MappedSections {
    /// Creates the memory of all pieces, and maps it to addresses of the driver's choice.
    ///
    /// # Errors
    /// As [`create`](MappedSections::create).
    pub fn create_anywhere(gpus: &HostGpus, pieces: &[GpuPiece]) -> Result<MappedSections> {
        let range = VirtualRange::reserve(gpus.first(), gpu_range_length(pieces) as usize, None);
        MappedSections::create(gpus, range.map_err(|error| driver_error(&error))?, pieces)
    }

    /// Creates the memory of all pieces, and maps it to `range`.
    ///
    /// # Errors
    /// [`Error::Unsupported`] with the driver's reason: a GPU that this process does not see, too
    /// little memory, a GPU that has no access to the memory of another.
    pub fn create(gpus: &HostGpus, range: VirtualRange, pieces: &[GpuPiece]) -> Result<MappedSections> {
        let create = |(i, piece): (usize, &GpuPiece)| {
            let created = PhysicalMemory::create(gpus.gpu(piece.gpu)?, piece.length as usize);
            created.map_err(|error| failed(piece, &error, pieces.len() - i))
        };
        MappedSections::map(gpus, range, pieces.iter().enumerate().map(create).collect::<Result<_>>()?)
    }

    /// Maps the memory of other processes, by the descriptors of all pieces, to `range`.
    ///
    /// # Errors
    /// As [`create`](MappedSections::create); [`Error::Invalid`] for another number of descriptors
    /// than there are pieces.
    pub fn import(
        gpus: &HostGpus,
        range: VirtualRange,
        pieces: &[GpuPiece],
        descriptors: &[OwnedFd],
    ) -> Result<MappedSections> {
        if pieces.len() != descriptors.len() {
            let (found, expected) = (descriptors.len(), pieces.len());
            return Err(Error::invalid(format!("{found} descriptors of GPU memory instead of {expected}")));
        }
        let import = |(i, (piece, descriptor)): (usize, (&GpuPiece, &OwnedFd))| {
            let bytes = piece.length as usize;
            let imported = PhysicalMemory::import(gpus.gpu(piece.gpu)?, descriptor.as_fd(), bytes);
            imported.map_err(|error| failed(piece, &error, pieces.len() - i))
        };
        let all = pieces.iter().zip(descriptors).enumerate();
        MappedSections::map(gpus, range, all.map(import).collect::<Result<_>>()?)
    }

    fn map(gpus: &HostGpus, range: VirtualRange, memory: Vec<PhysicalMemory>) -> Result<MappedSections> {
        let mapped = range.map_all(memory, &[]).map_err(|error| driver_error(&error))?;
        gpus.set_access(mapped.span(), true)?;
        Ok(MappedSections { mapped })
    }

    /// Returns a descriptor of each piece, for other processes.
    ///
    /// # Errors
    /// [`Error::Unsupported`] with the driver's reason.
    pub fn export(&self) -> Result<Vec<OwnedFd>> {
        let memories = self.mapped.memories();
        let export = |(i, memory): (usize, &PhysicalMemory)| {
            memory.export().map_err(|error| Error::Unsupported {
                what: format!("exporting {} pieces of GPU sections", memories.len()),
                why: format!("{error}{}", shortage(memories.len() - i)),
            })
        };
        memories.iter().enumerate().map(export).collect()
    }
}

/// Returns the error of a piece that cannot be created or imported. It is the first of `left`
/// pieces that are left.
fn failed(piece: &GpuPiece, error: &CudaError, left: usize) -> Error {
    Error::Unsupported {
        what: format!(
            "section \"{}\" with {} on GPU {} of {}",
            piece.section,
            Bytes(piece.length),
            piece.gpu,
            process::host_name()
        ),
        why: format!("{}{}", error.without_host(), shortage(left)),
    }
}

/// Returns the end of the error of a driver that may have too few descriptors for `pieces` pieces.
/// Drivers return various codes then, or none that names the cause.
fn shortage(pieces: usize) -> String {
    let (files, more) = (OpenDescriptors::count(), pieces as u64);
    if files.has_room(more) {
        return String::new();
    }
    format!(". The driver may lack descriptors: {}; raise `ulimit -n`", files.needs(more))
}
