//! A file to load, with its version when the agent has found it.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use hostbuf::{ErrorClass, JobError};
use hostbuf_os::process;

/// The identity and the version of a file: device, inode, length, and the time of the last change
/// of its contents.
type Version = (u64, u64, u64, (i64, i64));

/// The number of bytes at each end of a file that the hosts compare.
const COMPARED: u64 = 4096;

/// A file to load.
#[derive(Clone, Debug)]
pub(super) struct InputFile {
    path: PathBuf,
    name: OsString,
    version: Version,
}

fn version_of(found: &Metadata) -> Version {
    (found.dev(), found.ino(), found.len(), (found.mtime(), found.mtime_nsec()))
}

impl InputFile {
    /// Finds the file at `path` and checks that this process may read it.
    ///
    /// # Errors
    /// One line with the path, the host and the reason.
    pub(super) fn find(path: &Path) -> Result<InputFile, JobError> {
        let failed = |error: io::Error| failure(path, &error);
        // A FIFO without a writer would block.
        let opened = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path).map_err(failed)?;
        let found = opened.metadata().map_err(failed)?;
        let kind = found.file_type();
        let other = match () {
            () if found.is_file() => None,
            () if found.is_dir() => Some("a folder: name its files, as in --load FOLDER/*"),
            () if kind.is_fifo() || kind.is_socket() => Some("not a regular file: write its contents to one"),
            () => Some("a device: copy its contents to a file"),
        };
        let name = path.file_name();
        match (other, name) {
            (None, Some(name)) => {
                Ok(InputFile { path: path.to_owned(), name: name.to_owned(), version: version_of(&found) })
            }
            (other, _) => {
                let other = other.unwrap_or("a path without a name of a file");
                Err(refusal(ErrorClass::Invalid, path, &format!("it is {other}")))
            }
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the name without the folder.
    pub(super) fn name(&self) -> &OsStr {
        &self.name
    }

    /// Returns the number of bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.version.2
    }

    /// Returns the length, the time of the last change, and the first and the last bytes, which
    /// copies of a file share. Images and archives may give all files one time. A file that cannot
    /// be read has no bytes here, and an error later.
    pub(super) fn version_bytes(&self) -> Vec<u8> {
        let (_, _, bytes, (seconds, nanoseconds)) = self.version;
        let mut version = [bytes.to_le_bytes(), seconds.to_le_bytes(), nanoseconds.to_le_bytes()].concat();
        if let Ok(file) = File::open(&self.path) {
            for start in [0, bytes.saturating_sub(COMPARED)] {
                let mut part = vec![0; COMPARED.min(bytes) as usize];
                if file.read_exact_at(&mut part, start).is_ok() {
                    version.append(&mut part);
                }
            }
        }
        version
    }

    /// Checks that `opened` is this file, that the path still leads to it, and that its contents
    /// have not changed since the agent has found it.
    ///
    /// # Errors
    /// One line with the path, the host and the difference.
    pub(super) fn check(&self, opened: &File) -> Result<(), JobError> {
        let failed = |error: io::Error| failure(&self.path, &error);
        let at_path = fs::metadata(&self.path).map_err(failed)?;
        for found in [opened.metadata().map_err(failed)?, at_path] {
            let found = version_of(&found);
            if found != self.version {
                return Err(self.changed(found));
            }
        }
        Ok(())
    }

    /// Returns the error of a file that ends before its length.
    pub(super) fn ended(&self, opened: &File) -> JobError {
        match opened.metadata() {
            Ok(found) => self.changed(version_of(&found)),
            Err(error) => failure(&self.path, &error),
        }
    }

    fn changed(&self, found: Version) -> JobError {
        let shown = |(device, inode, bytes, (seconds, nanoseconds)): Version| {
            format!(
                "{bytes} bytes, inode {inode} of device {device:#x}, changed at {seconds}.{nanoseconds:09}"
            )
        };
        let (before, after) = (shown(self.version), shown(found));
        let why = format!(
            "it has changed while it was loaded (before: {before}; after: {after}). Start the job again once the file is complete"
        );
        refusal(ErrorClass::Fill, &self.path, &why)
    }
}

/// Returns the error of a file for which the kernel has refused an operation.
pub(super) fn failure(path: &Path, error: &io::Error) -> JobError {
    let remedy = match error.kind() {
        io::ErrorKind::NotFound => ". Each host of the job needs the file at this path",
        io::ErrorKind::PermissionDenied => ". The user of the job needs the right to read it",
        _ if error.raw_os_error() == Some(libc::EMFILE) => " (raise `ulimit -n`)",
        _ => "",
    };
    refusal(ErrorClass::Os, path, &format!("{error}{remedy}"))
}

/// Returns the error of a file that cannot be opened. The error of the kernel begins with the path.
pub(super) fn opening_failure(path: &Path, error: &io::Error) -> JobError {
    match error.to_string().strip_prefix(&format!("{}: ", path.display())) {
        Some(rest) => refusal(ErrorClass::Os, path, rest),
        None => failure(path, error),
    }
}

/// Returns the error of a file that cannot be loaded for the reason `why`.
pub(super) fn refusal(class: ErrorClass, path: &Path, why: &str) -> JobError {
    JobError::new(class, format!("cannot load {} on {}: {why}", shown(path), process::host_name()))
}

/// Returns a path as one line of text, in quotes if it contains blanks or control characters.
pub(super) fn shown(path: &Path) -> String {
    let text = path.display().to_string();
    match text.contains(|c: char| c.is_whitespace() || c.is_control()) {
        true => format!("{text:?}"),
        false => text,
    }
}
