//! The files that a rank has opened, and their versions.

use std::sync::{Arc, Mutex};

use hostbuf_os::poison::IgnorePoison;
use hostbuf_staging::Backend;

use crate::error::FileError;
use crate::opened_file::OpenedFile;
use crate::table::TensorTable;

/// The files that a rank has opened. Each is opened when its first byte is needed.
pub(super) struct OpenFiles<'t> {
    table: &'t TensorTable,
    backend: Backend,
    /// True if this rank is on the host of the rank that has read the headers, so that devices and
    /// inodes are the same.
    is_first_host: bool,
    files: Vec<Mutex<Option<Arc<OpenedFile>>>>,
}

impl<'t> OpenFiles<'t> {
    pub(super) fn new(table: &'t TensorTable, backend: Backend, is_first_host: bool) -> OpenFiles<'t> {
        let files = table.files().iter().map(|_| Mutex::default()).collect();
        OpenFiles { table, backend, is_first_host, files }
    }

    /// Returns a file, which is opened if it is not yet.
    ///
    /// # Errors
    /// As [`OpenedFile::open`].
    pub(super) fn get(&self, number: usize) -> Result<Arc<OpenedFile>, FileError> {
        let mut slot = self.files[number].lock().ignore_poison();
        if let Some(open) = &*slot {
            return Ok(open.clone());
        }
        let open = Arc::new(OpenedFile::open(&self.table.files()[number], self.backend, self.is_first_host)?);
        *slot = Some(open.clone());
        Ok(open)
    }

    /// Checks that no file has changed since it was opened, and that each path still leads to its
    /// file.
    ///
    /// # Errors
    /// As [`OpenedFile::check`].
    pub(super) fn check(&self) -> Result<(), FileError> {
        for open in &self.files {
            if let Some(open) = &*open.lock().ignore_poison() {
                open.check()?;
            }
        }
        Ok(())
    }
}
