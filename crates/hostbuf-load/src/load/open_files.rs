//! The files that a rank has opened, and their versions.

use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex};

use hostbuf_os::poison::IgnorePoison;
use hostbuf_staging::{Backend, File, FileOptions};

use crate::error::{FileError, FileProblem};
use crate::table::{FileVersion, TensorTable};

/// The files that a rank has opened. Each is opened when its first byte is needed.
pub(super) struct OpenFiles<'t> {
    table: &'t TensorTable,
    backend: Backend,
    /// True if this rank is on the host of the rank that has read the headers, so that devices and
    /// inodes are the same.
    is_first_host: bool,
    files: Vec<Mutex<Option<Arc<OpenedFile>>>>,
}

/// A file that is open, with its version when it was opened.
pub(super) struct OpenedFile {
    pub(super) file: File,
    version: FileVersion,
}

impl OpenedFile {
    fn path(&self) -> &Path {
        self.file.path()
    }

    /// Returns the error of a file that is not the one that was opened.
    fn changed(&self, after: FileVersion) -> FileError {
        FileProblem::Changed { before: self.version, after }.at(self.path())
    }

    /// Returns the version of the open file.
    fn version_now(&self) -> Result<FileVersion, FileError> {
        version_of(&self.file)
    }

    /// Returns the error of a file that has ended early.
    pub(super) fn ended(&self) -> FileError {
        self.version_now().map_or_else(|error| error, |after| self.changed(after))
    }
}

fn version_of(file: &File) -> Result<FileVersion, FileError> {
    let metadata = file.as_std().metadata();
    metadata.map(|found| FileVersion::of(&found)).map_err(|e| FileProblem::io("fstat of")(e).at(file.path()))
}

impl<'t> OpenFiles<'t> {
    pub(super) fn new(table: &'t TensorTable, backend: Backend, is_first_host: bool) -> OpenFiles<'t> {
        let files = table.files().iter().map(|_| Mutex::default()).collect();
        OpenFiles { table, backend, is_first_host, files }
    }

    /// Returns a file, which is opened if it is not yet.
    ///
    /// # Errors
    /// The kernel's; [`FileProblem::OtherVersion`] if the file is not the one whose header was
    /// read.
    pub(super) fn get(&self, number: usize) -> Result<Arc<OpenedFile>, FileError> {
        let mut slot = self.files[number].lock().ignore_poison();
        if let Some(open) = &*slot {
            return Ok(open.clone());
        }
        let source = &self.table.files()[number];
        // A file that is shifted against pages cannot be read past the page cache.
        let backend = if source.is_page_aligned() { self.backend } else { Backend::Posix };
        let file = FileOptions::new().backend(backend).open(&source.path);
        let file = file.map_err(|error| FileProblem::opening(error, &source.path))?;
        let own = version_of(&file)?;
        let is_same =
            if self.is_first_host { own == source.version } else { own.is_same_version(&source.version) };
        if !is_same {
            return Err(FileProblem::OtherVersion { first: source.version, own }.at(&source.path));
        }
        let open = Arc::new(OpenedFile { file, version: own });
        *slot = Some(open.clone());
        Ok(open)
    }

    /// Checks that no file has changed since it was opened, and that each path still leads to its
    /// file.
    ///
    /// # Errors
    /// [`FileProblem::Changed`]; the kernel's.
    pub(super) fn check(&self) -> Result<(), FileError> {
        for open in &self.files {
            let Some(open) = &*open.lock().ignore_poison() else { continue };
            let found = fs::metadata(open.path());
            let at_path = found.map_err(|e| FileProblem::io("stat of")(e).at(open.path()))?;
            for after in [open.version_now()?, FileVersion::of(&at_path)] {
                if after != open.version {
                    return Err(open.changed(after));
                }
            }
        }
        Ok(())
    }
}
