//! A file of a table that is open, and its version.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use hostbuf_staging::{Backend, File, FileOptions};

use crate::error::{FileError, FileProblem};
use crate::table::{FileVersion, SourceFile};

/// A file of a table that is open, with its version when it was opened.
#[derive(Debug)]
pub(crate) struct OpenedFile {
    pub(crate) file: Arc<File>,
    version: FileVersion,
}

impl OpenedFile {
    /// Opens a file. `is_same_host` is true if this process is on the host where its header was
    /// read, so that the device and the inode must be the same.
    ///
    /// # Errors
    /// The kernel's; [`FileProblem::OtherVersion`] if the file is not the one whose header was
    /// read.
    pub(crate) fn open(
        source: &SourceFile,
        backend: Backend,
        is_same_host: bool,
    ) -> Result<OpenedFile, FileError> {
        // A file that is shifted against pages cannot be read bypassing the page cache.
        let backend = if source.is_page_aligned() { backend } else { Backend::Posix };
        let file = FileOptions::new().backend(backend).open(&source.path);
        let file = Arc::new(file.map_err(|error| FileProblem::opening(error, &source.path))?);
        let own = version_of(&file)?;
        let is_same = if is_same_host { own == source.version } else { own.is_same_version(&source.version) };
        if !is_same {
            return Err(FileProblem::OtherVersion { first: source.version, own }.at(&source.path));
        }
        Ok(OpenedFile { file, version: own })
    }

    pub(crate) fn path(&self) -> &Path {
        self.file.path()
    }

    /// Returns the error of a file that is not the one that was opened.
    fn changed(&self, after: FileVersion) -> FileError {
        FileProblem::Changed { before: self.version, after }.at(self.path())
    }

    /// Returns the error of a file that has ended early.
    pub(crate) fn ended(&self) -> FileError {
        version_of(&self.file).map_or_else(|error| error, |after| self.changed(after))
    }

    /// Checks that the file has not changed since it was opened, and that its path still leads to
    /// it.
    ///
    /// # Errors
    /// [`FileProblem::Changed`]; the kernel's.
    pub(crate) fn check(&self) -> Result<(), FileError> {
        let at_path = fs::metadata(self.path()).map_err(|e| FileProblem::io("stat of")(e).at(self.path()))?;
        for after in [version_of(&self.file)?, FileVersion::of(&at_path)] {
            if after != self.version {
                return Err(self.changed(after));
            }
        }
        Ok(())
    }
}

fn version_of(file: &File) -> Result<FileVersion, FileError> {
    let metadata = file.as_std().metadata();
    metadata.map(|found| FileVersion::of(&found)).map_err(|e| FileProblem::io("fstat of")(e).at(file.path()))
}
