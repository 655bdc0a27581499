//! Copies from a buffer to a device.

#![allow(unsafe_code, reason = "starts copies from a buffer that is filled")]

use std::borrow::Cow;
use std::path::Path;
use std::sync::Mutex;

use hostbuf::HostBuffer;
use hostbuf::job::Collective;
use hostbuf_staging::CopyDevice;

use super::queued_copies::QueuedCopies;
use super::region_rows::RegionRows;
use super::started_copies::StartedCopies;
use super::window_copies::WindowCopies;
use crate::error::LoadError;
use crate::load::LoadOptions;
use crate::slice_target::SliceTarget;
use crate::table::TensorTable;
use crate::tensors::Tensors;

impl Tensors {
    /// Copies tensors, or slices of them, from the buffer to memory of a device, and waits for the
    /// end. The device copies at full speed if the buffer is registered with it. A slice of several
    /// rows at equal distances, such as one of the last dimension, is one copy of rows
    /// ([`CopyDevice::copy_rows_to_device`]). Returns the number of bytes.
    ///
    /// # Errors
    /// [`LoadError::NoTensor`] and [`LoadError::Target`] before anything is copied;
    /// [`LoadError::Transfer`]. A device that is lost may still read the buffer, so this process
    /// then keeps the buffer, and the memory of the targets, until it ends.
    pub fn copy_to_device<D: CopyDevice>(
        &self,
        device: &D,
        targets: &[SliceTarget],
    ) -> Result<u64, LoadError> {
        let (table, region) = (self.table(), self.region());
        let entries = targets.iter().map(|target| target.checked(table)).collect::<Result<Vec<_>, _>>()?;
        let mut started = StartedCopies::new(device, region.clone(), Cow::Borrowed(targets));
        let mut queued = QueuedCopies::default();
        for (target, entry) in targets.iter().zip(entries) {
            let (start, address) = (table.region_offset(entry), target.target.address());
            for part in target.strided_parts(entry) {
                queued.push(region, &RegionRows::new(&part, start, address));
                if queued.is_full() {
                    // SAFETY: nothing writes to a buffer that is filled.
                    unsafe { started.start(&mut queued) };
                }
            }
        }
        // SAFETY: as above.
        unsafe { started.start(&mut queued) };
        started.finish()
    }
}

impl LoadOptions {
    /// Loads files as [`load`](LoadOptions::load) does, and copies tensors, or slices of them, to
    /// memory of a device of this rank meanwhile: each window as soon as it has been read. So the
    /// time is the longer one of reading and copying, not their sum. The rows of a slice that lie
    /// within a window are one copy of rows. Register the buffer with the device before. `targets`
    /// is called once on each rank, with the table of the files; each rank has targets of its own.
    ///
    /// # Errors
    /// As [`load`](LoadOptions::load), on all ranks. After a load that has succeeded, the error of
    /// `targets` and those of [`Tensors::copy_to_device`], on this rank only: the tensors of the
    /// buffer are then complete ([`Tensors::open`]).
    pub fn load_to_device<D: CopyDevice>(
        self,
        group: &dyn Collective,
        buffer: &HostBuffer,
        paths: &[impl AsRef<Path>],
        device: &D,
        targets: &(dyn Fn(&TensorTable) -> Result<Vec<SliceTarget>, LoadError> + Sync),
    ) -> Result<Tensors, LoadError> {
        let copies = Mutex::new(None);
        let tensors = self.load_with(group, buffer, paths, &|progress| {
            // A window that another thread misses here is found by the next call.
            let Ok(mut copies) = copies.try_lock() else { return };
            let copies = copies.get_or_insert_with(|| {
                let tensors = Tensors::at(buffer, *progress.region().root())?;
                WindowCopies::new(device, &tensors, targets(tensors.table())?)
            });
            if let Ok(copies) = copies {
                copies.start_ready(progress);
            }
        })?;
        let copies = copies.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
        // The observer is called at least once.
        let mut copies = copies.ok_or(LoadError::Damaged)??;
        let progress = tensors.progress();
        copies.start_ready(&progress);
        let times = copies.finish(&progress)?;
        Ok(tensors.with_copies(times))
    }
}
