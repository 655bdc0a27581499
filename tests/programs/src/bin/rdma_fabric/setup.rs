//! The state that the checks of `rdma_fabric` share.

use std::time::Duration;

use hostbuf::HostBuffer;
use hostbuf::job::Collective;
use hostbuf_programs::checks::text;
use hostbuf_programs::tcp::Tcp;
use hostbuf_rdma::{Fabric, FabricOptions, HostIndex};

pub(crate) const MIB: usize = 1 << 20;
pub(crate) const SIZE: usize = 132 * MIB;
pub(crate) const TIMEOUT: Duration = Duration::from_secs(30);

/// The state that all checks share.
pub(crate) struct FabricSetup {
    pub(crate) world: Tcp,
    pub(crate) buffer: HostBuffer,
    pub(crate) fabric: Fabric,
    pub(crate) own: usize,
    pub(crate) other: HostIndex,
}

pub(crate) fn connect(
    world: &dyn Collective,
    buffer: &HostBuffer,
    options: FabricOptions,
) -> hostbuf::Result<Fabric> {
    // SAFETY: the checks access their buffers through pointers, and use references only when no
    // operation is in progress.
    unsafe { Fabric::connect(world, buffer, options) }
}

impl FabricSetup {
    pub(crate) fn at(&self, offset: usize) -> *mut u8 {
        self.buffer.as_ptr().as_ptr().wrapping_add(offset)
    }

    pub(crate) fn fill(&self, offset: usize, length: usize, seed: u8) {
        for i in 0..length {
            // SAFETY: this host's own memory, which the other one does not access at this time.
            unsafe { self.at(offset + i).write((i % 251) as u8 ^ seed) };
        }
    }

    pub(crate) fn has_at(&self, offset: usize, byte: u8) -> bool {
        // SAFETY: as below.
        unsafe { self.at(offset).read_volatile() == byte }
    }

    pub(crate) fn has(&self, offset: usize, length: usize, seed: u8) -> bool {
        // SAFETY: as above; a device may have written it before.
        (0..length).all(|i| unsafe { self.at(offset + i).read_volatile() } == (i % 251) as u8 ^ seed)
    }

    pub(crate) fn barrier(&self) -> Result<(), String> {
        self.world.barrier().map_err(text)
    }
}
