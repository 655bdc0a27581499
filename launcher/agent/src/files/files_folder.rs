//! The folder with links to the loaded files.
//!
//! A link named `.hostbuf` states the owner of the folder ([`FolderOwner`]). It is made first and
//! removed last, so a folder with any link of hostbuf states whose links they are. The folder is
//! locked while links are made and removed.

use std::ffi::{OsStr, OsString};
use std::fs::{self, DirBuilder};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};

use hostbuf::{ErrorClass, JobError};
use hostbuf_os::process;

use super::folder_lock::FolderLock;
use super::folder_owner::{FolderOwner, OwnerState};
use super::input_file::shown;

/// The name of the link that states the owner.
pub(super) const OWNER_NAME: &str = ".hostbuf";
/// The bit of the mode of a folder that hostbuf has made, and therefore removes. It has no other
/// effect, as only one user can write to the folder.
#[doc(alias = "S_ISVTX")]
pub(super) const MADE: u32 = 0o1000;

/// A folder that this agent owns, and the descriptors to which its links lead.
#[derive(Debug)]
pub(crate) struct FilesFolder {
    path: PathBuf,
    owner: FolderOwner,
    files: Vec<OwnedFd>,
}

impl FilesFolder {
    /// Makes the folder at `path`, or takes one that is empty or has only links of an agent that
    /// has ended, and makes this process its owner.
    ///
    /// # Errors
    /// The class `Invalid` for a folder that has anything else, or that other users can change;
    /// `Os` for a folder that cannot be made.
    pub(super) fn claim(path: &Path, job: u128) -> Result<FilesFolder, JobError> {
        loop {
            let is_made = match DirBuilder::new().mode(0o700 | MADE).create(path) {
                Ok(()) => true,
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => false,
                Err(error) => return Err(failure("make the folder", path, &error)),
            };
            match FilesFolder::claim_existing(path, job) {
                Ok(None) => {}
                Ok(Some(folder)) => return Ok(folder),
                Err(error) => {
                    if is_made {
                        // It has nothing in it, or is no longer the one that was made.
                        let _ = fs::remove_dir(path);
                    }
                    return Err(error);
                }
            }
        }
    }

    /// Makes this process the owner of the folder at `path`. Returns `None` if another process has
    /// removed it, or was first to own it.
    fn claim_existing(path: &Path, job: u128) -> Result<Option<FilesFolder>, JobError> {
        if !check_rights(path)? {
            return Ok(None);
        }
        let locked = FolderLock::of(path).map_err(|error| failure("lock the folder", path, &error))?;
        let Some(_locked) = locked else { return Ok(None) };
        clear(path)?;
        let owner = FolderOwner::this_process(job);
        match symlink(owner.text(), path.join(OWNER_NAME)) {
            Ok(()) => Ok(Some(FilesFolder { path: path.to_owned(), owner, files: Vec::new() })),
            // Only a file system without locks lets another process come first.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(None),
            Err(error) => Err(failure("make a link in", path, &error)),
        }
    }

    /// Makes a link to each of `files`, and keeps their descriptors.
    pub(super) fn publish(&mut self, files: Vec<(OsString, OwnedFd)>) -> Result<(), JobError> {
        for (name, file) in files {
            let link = self.path.join(name);
            let made = symlink(self.owner.descriptor(file.as_raw_fd()), &link);
            made.map_err(|error| failure("make the link", &link, &error))?;
            self.files.push(file);
        }
        Ok(())
    }

    /// Removes the links, and the folder if hostbuf has made it.
    pub(super) fn remove(self) {
        let FilesFolder { path, owner, .. } = self;
        if let Err(error) = remove(&path, owner.job) {
            complain!("hostbuf-agent: cannot remove {} on {}: {error}", shown(&path), process::host_name());
        }
    }
}

/// Checks that only this user can make links in the folder. Returns false if there is no folder.
fn check_rights(path: &Path) -> Result<bool, JobError> {
    let found = match fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return match fs::symlink_metadata(path) {
                Ok(_) => Err(refusal(path, "is a link to a folder that does not exist: name a new folder")),
                Err(_) => Ok(false),
            };
        }
        found => found.map_err(|error| failure("examine the folder", path, &error))?,
    };
    if !found.is_dir() {
        Err(refusal(path, "is not a folder: name a new one"))
    } else if found.uid() != nix::unistd::geteuid().as_raw() {
        Err(refusal(path, "belongs to another user: name a new one"))
    } else if found.mode() & 0o022 != 0 {
        Err(refusal(path, "can be changed by other users: name a new one, or run chmod go-w on it"))
    } else {
        Ok(true)
    }
}

/// Removes the links of an agent that has ended.
///
/// # Errors
/// The class `Invalid`, if the folder has anything else; then nothing is removed.
fn clear(path: &Path) -> Result<(), JobError> {
    let failed = |error: io::Error| failure("clear the folder", path, &error);
    let names = names(path).map_err(failed)?;
    let Some(first) = names.first() else { return Ok(()) };
    let owner = owner_of(path).map_err(failed)?;
    let Some(owner) = owner else {
        let what =
            format!("is not empty (it has {}): name a new folder, or empty it", shown(Path::new(first)));
        return Err(refusal(path, &what));
    };
    let FolderOwner { host, pid, .. } = &owner;
    match owner.state() {
        OwnerState::Running => {
            return Err(refusal(
                path,
                &format!("has the files of a job that runs (its agent is process {pid}): name another"),
            ));
        }
        OwnerState::OutOfSight => {
            let what = format!(
                "has the files of a job on {host}: name a folder that the hosts do not share, such as one in /tmp, or put %h \
                 into its path; if that job has ended, remove the folder"
            );
            return Err(refusal(path, &what));
        }
        OwnerState::Ended => {}
    }
    let is_link =
        |name: &OsStr| fs::read_link(path.join(name)).is_ok_and(|target| owner.has_descriptor(&target));
    if let Some(other) = names.iter().find(|name| *name != OWNER_NAME && !is_link(name)) {
        let other = shown(Path::new(other));
        let what = format!(
            "has {other} besides the links of a job that has ended: move {other} away, or name a new folder"
        );
        return Err(refusal(path, &what));
    }
    unlink(path, &owner, names).map_err(failed)
}

/// Returns the names of all entries of a folder, in order.
pub(super) fn names(path: &Path) -> io::Result<Vec<OsString>> {
    let mut names =
        fs::read_dir(path)?.map(|entry| Ok(entry?.file_name())).collect::<io::Result<Vec<OsString>>>()?;
    names.sort();
    Ok(names)
}

/// Returns the owner of a folder, or `None` if it states none.
pub(super) fn owner_of(path: &Path) -> io::Result<Option<FolderOwner>> {
    match fs::read_link(path.join(OWNER_NAME)) {
        Ok(text) => Ok(text.to_str().and_then(FolderOwner::parse)),
        // EINVAL: it is not a link.
        Err(error)
            if error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::EINVAL) =>
        {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Removes the links of `owner`, the one that states it last.
fn unlink(path: &Path, owner: &FolderOwner, names: Vec<OsString>) -> io::Result<()> {
    let removed = |result: io::Result<()>| match result {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    };
    for name in names {
        let link = path.join(name);
        if fs::read_link(&link).is_ok_and(|target| owner.has_descriptor(&target)) {
            removed(fs::remove_file(link))?;
        }
    }
    removed(fs::remove_file(path.join(OWNER_NAME)))
}

/// Removes the links of a job from the folder at `path` on this host, and the folder if hostbuf has
/// made it and nothing else is in it. A folder of another job stays as it is, and one of none stays
/// unless hostbuf has made it and it is empty: an agent that was killed then had not stated its job
/// yet.
///
/// # Errors
/// As `flock(2)`, `unlink(2)` and `rmdir(2)`.
pub fn remove(path: &Path, job: u128) -> io::Result<()> {
    let own = || {
        let owner = owner_of(path).unwrap_or_default();
        owner.filter(|owner| owner.job == job && owner.host == process::host_name())
    };
    if own().is_none() && !is_left_empty(path) {
        return Ok(());
    }
    // An agent of another job that finds its folder removed makes it again.
    let Some(_locked) = FolderLock::of(path)? else { return Ok(()) };
    match own() {
        Some(owner) => unlink(path, &owner, names(path)?)?,
        None if is_left_empty(path) => {}
        None => return Ok(()),
    }
    if fs::metadata(path)?.mode() & MADE == 0 {
        return Ok(());
    }
    match fs::remove_dir(path) {
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOTEMPTY | libc::ENOENT | libc::EBUSY)) => {
            Ok(())
        }
        removed => removed,
    }
}

/// Returns whether hostbuf has made a folder for this user that has nothing in it.
fn is_left_empty(path: &Path) -> bool {
    let is_own =
        |found: fs::Metadata| found.mode() & MADE != 0 && found.uid() == nix::unistd::geteuid().as_raw();
    fs::symlink_metadata(path).is_ok_and(is_own) && names(path).is_ok_and(|names| names.is_empty())
}

/// Returns the error of an operation that the kernel has refused.
fn failure(doing: &str, path: &Path, error: &io::Error) -> JobError {
    let host = process::host_name();
    JobError::new(ErrorClass::Os, format!("cannot {doing} {} on {host}: {error}", shown(path)))
}

/// Returns the error of a folder that cannot be used for the reason `why`.
fn refusal(path: &Path, why: &str) -> JobError {
    let host = process::host_name();
    JobError::new(ErrorClass::Invalid, format!("--as-files {} on {host} {why}", shown(path)))
}
