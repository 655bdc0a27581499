//! The place of an agent's folder, which the agent's threads share.

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use hostbuf::{ErrorClass, JobError};

use super::files_folder::FilesFolder;

/// The place of an agent's folder. The thread that ends the process closes it, and no other thread
/// makes a link after that.
#[derive(Debug, Default)]
pub(crate) struct FolderSlot(Mutex<(Option<FilesFolder>, bool)>);

impl FolderSlot {
    fn lock(&self) -> MutexGuard<'_, (Option<FilesFolder>, bool)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes this process the owner of the folder at `path`.
    ///
    /// # Errors
    /// As [`FilesFolder::claim`]; the end of the agent.
    pub(crate) fn claim(&self, path: &Path, job: u128) -> Result<(), JobError> {
        let (folder, is_closed) = &mut *self.lock();
        if *is_closed {
            return Err(JobError::new(ErrorClass::Attach, "the agent is ending"));
        }
        *folder = Some(FilesFolder::claim(path, job)?);
        Ok(())
    }

    /// Makes a link to each of `files`, and keeps their descriptors until the process ends.
    ///
    /// # Errors
    /// As `symlink(2)`; the end of the agent.
    pub(crate) fn publish(&self, files: Vec<(OsString, OwnedFd)>) -> Result<(), JobError> {
        match &mut *self.lock() {
            (Some(folder), false) => folder.publish(files),
            _ => Err(JobError::new(ErrorClass::Attach, "the agent is ending")),
        }
    }

    /// Removes the folder, before the process ends.
    pub(crate) fn close(&self) {
        let (folder, is_closed) = &mut *self.lock();
        *is_closed = true;
        if let Some(folder) = folder.take() {
            folder.remove();
        }
    }
}
