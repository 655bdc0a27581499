//! The slices of a rank on its GPU.

#![allow(unsafe_code, reason = "starts copies of the GPU between two ranges that outlive them")]

use std::error::Error;
use std::sync::Arc;

use hostbuf::job::{Collective, Local};
use hostbuf_cuda::{CudaContext, DeviceMemory};
use hostbuf_load::{SliceTarget, TensorTable, Tensors};
use hostbuf_staging::{CopyDevice, CudaDevice, DeviceCopy, DeviceTarget};

/// This rank's part of the first dimension of all tensors of a table, as ranges of one allocation
/// on the GPU.
pub(crate) struct RankSlices {
    memory: Arc<DeviceMemory>,
    pub(crate) targets: Vec<SliceTarget>,
}

impl RankSlices {
    /// Allocates memory for the slices of this rank of `group`.
    ///
    /// # Errors
    /// The driver's, and those of a tensor that the ranks cannot divide.
    pub(crate) fn new(
        context: &CudaContext,
        table: &TensorTable,
        group: &Local,
    ) -> Result<RankSlices, Box<dyn Error>> {
        let slices = table.tensors().iter().map(|entry| {
            let slice = match entry.shape.first() {
                Some(_) => entry.slice(0, group.rank(), group.size())?,
                None => entry.whole(),
            };
            Ok((entry.name.clone(), slice))
        });
        let slices = slices.collect::<Result<Vec<_>, Box<dyn Error>>>()?;
        let bytes: u64 = slices.iter().map(|(_, slice)| slice.bytes).sum();
        let memory = Arc::new(DeviceMemory::new(context, bytes.max(1) as usize)?);
        let (whole, mut at) = (DeviceTarget::new(memory.clone()), 0);
        let targets = slices.into_iter().map(|(name, slice)| {
            let target = whole.part(at..at + slice.bytes)?;
            at += slice.bytes;
            Ok(SliceTarget::new(name, target).slice(slice))
        });
        let targets = targets.collect::<Result<_, Box<dyn Error>>>()?;
        Ok(RankSlices { memory, targets })
    }

    /// Compares the slices on the GPU with those of the buffer.
    ///
    /// # Errors
    /// The driver's, and the name of a tensor that differs.
    pub(crate) fn compare(&self, device: &CudaDevice, tensors: &Tensors) -> Result<(), Box<dyn Error>> {
        let mut found = vec![0u8; self.memory.span().bytes()];
        let copy =
            DeviceCopy { host: found.as_mut_ptr(), bytes: found.len(), address: self.memory.address() };
        let done = device.new_event()?;
        // SAFETY: both sides live until the copy has ended, and nothing else uses them.
        unsafe { device.copy_to_host(&[copy], &done) }?;
        device.wait(&done)?;
        let mut at = 0;
        for target in &self.targets {
            let slice = target.slice.as_ref().ok_or("each target has a slice")?;
            let mut expected = vec![0; slice.bytes as usize];
            slice.copy(tensors.get(&target.tensor)?.bytes, &mut expected);
            if found[at..at + expected.len()] != expected {
                return Err(format!("{} differs on the GPU", target.tensor).into());
            }
            at += expected.len();
        }
        Ok(())
    }
}
