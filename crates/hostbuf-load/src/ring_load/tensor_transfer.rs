//! A load of tensors through a ring.

use std::collections::BTreeMap;

use hostbuf_staging::{Backend, CopyDevice, Ring, Transfer};

use crate::error::LoadError;
use crate::opened_file::OpenedFile;
use crate::slice_target::SliceTarget;
use crate::table::TensorTable;

/// A load of tensors through a ring, in flight or ended. Dropping it cancels it.
#[derive(Debug)]
#[must_use = "dropping a transfer cancels it"]
pub struct TensorTransfer {
    /// The transfer of each file.
    files: Vec<(OpenedFile, Transfer)>,
}

/// Starts to move tensors, or slices of them, from their files to memory of the device of a ring.
/// Of each file only the bytes of the slices are read, and those of short gaps between them. The
/// tensors of a file are one batch, so small ones share slots of the ring. Nothing is kept.
///
/// The files are those of the table, which this process, or another one on any host, has read.
///
/// # Errors
/// [`LoadError::NoTensor`]; [`LoadError::Target`]; [`LoadError::File`] if a file cannot be opened,
/// or has changed since its header was read. Nothing is moved then.
pub fn load_through<D: CopyDevice>(
    ring: &Ring<D>,
    table: &TensorTable,
    targets: &[SliceTarget],
    backend: Backend,
) -> Result<TensorTransfer, LoadError> {
    let mut parts = BTreeMap::<usize, Vec<_>>::new();
    for target in targets {
        let entry = target.checked(table)?;
        parts.entry(entry.file).or_default().append(&mut target.parts(entry)?);
    }
    let mut opened = Vec::with_capacity(parts.len());
    for (file, parts) in parts {
        opened.push((OpenedFile::open(&table.files()[file], backend, false)?, parts));
    }
    let start = |(file, parts): (OpenedFile, _)| {
        let transfer = ring.read_batch(file.file.clone(), parts);
        (file, transfer)
    };
    Ok(TensorTransfer { files: opened.into_iter().map(start).collect() })
}

impl TensorTransfer {
    /// Waits until all tensors have arrived, checks that no file has changed meanwhile, and returns
    /// the number of bytes.
    ///
    /// # Errors
    /// [`LoadError::Transfer`] and [`LoadError::File`]. The memory of the device then has
    /// indeterminate contents. The transfers of other files are cancelled.
    pub fn wait(&self) -> Result<u64, LoadError> {
        let mut bytes = 0;
        for (file, transfer) in &self.files {
            match transfer.wait() {
                Ok(landed) => bytes += landed,
                Err(error) => {
                    self.cancel();
                    // A file that was cut has changed, whatever the transfer has met.
                    file.check()?;
                    return Err(error.into());
                }
            }
        }
        for (file, _) in &self.files {
            file.check()?;
        }
        Ok(bytes)
    }

    /// Returns whether the transfers of all files have ended.
    #[must_use]
    pub fn test(&self) -> bool {
        self.files.iter().all(|(_, transfer)| transfer.test())
    }

    /// Returns the number of bytes that have landed, of each file from the first on.
    #[must_use]
    pub fn landed(&self) -> u64 {
        self.files.iter().map(|(_, transfer)| transfer.landed()).sum()
    }

    /// Cancels the transfers of all files that have not ended.
    pub fn cancel(&self) {
        self.files.iter().for_each(|(_, transfer)| transfer.cancel());
    }
}
