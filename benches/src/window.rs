//! MPI's own shared memory, for comparison with hostbuf.

#![allow(
    unsafe_code,
    reason = "rsmpi has only foreign functions for windows, and their memory is a raw pointer"
)]

use std::ffi::{c_int, c_void};

use mpi::ffi;
use mpi::topology::SimpleCommunicator;
use mpi::traits::{AsRaw, Communicator};

/// A shared window over the ranks of one host.
pub(crate) struct MpiWindow {
    window: ffi::MPI_Win,
    /// The address of rank 0's part in this process; the parts are contiguous.
    pub(crate) base: *mut u8,
    /// The address of this rank's part in this process.
    pub(crate) mine: *mut u8,
    /// The bytes of this rank's part.
    pub(crate) part: usize,
}

impl MpiWindow {
    /// Allocates `bytes` over all ranks of `world`, each an equal part. Collective; all ranks are
    /// on one host.
    pub(crate) fn allocate(world: &SimpleCommunicator, bytes: usize) -> MpiWindow {
        let part = bytes / world.size() as usize;
        let (mut mine, mut base) = (std::ptr::null_mut::<c_void>(), std::ptr::null_mut::<c_void>());
        let (mut size, mut unit): (ffi::MPI_Aint, c_int) = (0, 0);
        // SAFETY: every pointer is to a local of the type that MPI expects; by MPI's default an
        // error ends the job.
        let window = unsafe {
            let mut window = std::mem::zeroed();
            let mine_at = (&raw mut mine).cast();
            let info = ffi::RSMPI_INFO_NULL;
            ffi::MPI_Win_allocate_shared(
                part as ffi::MPI_Aint,
                1,
                info,
                world.as_raw(),
                mine_at,
                &raw mut window,
            );
            let base_at = (&raw mut base).cast();
            ffi::MPI_Win_shared_query(window, 0, &raw mut size, &raw mut unit, base_at);
            window
        };
        MpiWindow { window, base: base.cast(), mine: mine.cast(), part }
    }

    /// Writes to every page of this rank's part.
    pub(crate) fn touch(&self) {
        for at in (0..self.part).step_by(4096) {
            // SAFETY: inside this rank's part, which no other process uses meanwhile.
            unsafe { self.mine.add(at).write_volatile(1) };
        }
    }

    /// Frees the window. Collective.
    pub(crate) fn free(mut self) {
        // SAFETY: allocate() made it, and no process uses the memory any more.
        unsafe { ffi::MPI_Win_free(&raw mut self.window) };
    }
}
