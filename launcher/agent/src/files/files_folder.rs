//! The folder with links to the loaded files.
//!
//! A link named `.hostbuf` states the owner of the folder ([`FolderOwner`]). It is made first and
//! removed last, so a folder with any link of hostbuf states whose links they are. The folder is
//! locked while links are made and removed.

use std::ffi::{OsStr, OsString};
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use hostbuf::{Error, ErrorClass, JobError};
use hostbuf_os::process;
use nix::fcntl::{Flock, FlockArg};

use super::folder_owner::{FolderOwner, OwnerState};
use super::input_file::shown;

/// The name of the link that states the owner.
pub(super) const OWNER_NAME: &str = ".hostbuf";
/// The time within which other processes make or remove their links.
const LOCK_TIMEOUT: Duration = Duration::from_secs(10);
/// The interval at which a lock is tried again.
const LOCK_RETRY: Duration = Duration::from_millis(5);

/// Returns the folder on this host for the folder of a command line, in which `%h` stands for the
/// name of the host and `%%` for one `%`.
///
/// # Errors
/// [`Error::Invalid`] for another character behind `%`.
pub fn on_this_host(folder: &Path) -> hostbuf::Result<PathBuf> {
    let mut bytes = Vec::new();
    let mut rest = folder.as_os_str().as_bytes().iter();
    while let Some(&byte) = rest.next() {
        match (byte, if byte == b'%' { rest.next() } else { None }) {
            (b'%', Some(b'h')) => bytes.extend_from_slice(process::host_name().as_bytes()),
            (b'%', Some(b'%')) => bytes.push(b'%'),
            (b'%', _) => {
                return Err(Error::Invalid {
                    what: format!(
                        "invalid --as-files {}: expected h or % behind each %, as in /scratch/%h/db",
                        shown(folder)
                    ),
                });
            }
            (byte, _) => bytes.push(byte),
        }
    }
    Ok(OsString::from_vec(bytes).into())
}

/// A folder that this agent owns, and the descriptors to which its links lead.
#[derive(Debug)]
pub(crate) struct FilesFolder {
    path: PathBuf,
    owner: FolderOwner,
    files: Vec<OwnedFd>,
}

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
        if let Some(FilesFolder { path, owner, .. }) = folder.take()
            && let Err(error) = remove(&path, owner.job)
        {
            complain!("hostbuf-agent: cannot remove {} on {}: {error}", shown(&path), process::host_name());
        }
    }
}

impl FilesFolder {
    /// Makes the folder at `path`, or takes one that is empty or has only links of an agent that
    /// has ended, and makes this process its owner.
    ///
    /// # Errors
    /// The class `Invalid` for a folder that has anything else, or that other users can change;
    /// `Os` for a folder that cannot be made.
    fn claim(path: &Path, job: u128) -> Result<FilesFolder, JobError> {
        loop {
            let is_made = match DirBuilder::new().mode(0o700).create(path) {
                Ok(()) => true,
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => false,
                Err(error) => return Err(failure("make the folder", path, &error)),
            };
            match FilesFolder::claim_existing(path, job, is_made) {
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

    /// Makes this process the owner of the folder at `path`, which hostbuf has made if `is_made`.
    /// Returns `None` if another process has removed it, or was first to own it.
    fn claim_existing(path: &Path, job: u128, is_made: bool) -> Result<Option<FilesFolder>, JobError> {
        if !check_rights(path)? {
            return Ok(None);
        }
        let locked = lock(path).map_err(|error| failure("lock the folder", path, &error))?;
        let Some(_locked) = locked else { return Ok(None) };
        let was_made = clear(path)?;
        let owner = FolderOwner::this_process(job, is_made || was_made);
        match symlink(owner.text(), path.join(OWNER_NAME)) {
            Ok(()) => Ok(Some(FilesFolder { path: path.to_owned(), owner, files: Vec::new() })),
            // Only a file system without locks lets another process come first.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(None),
            Err(error) => Err(failure("make a link in", path, &error)),
        }
    }

    fn publish(&mut self, files: Vec<(OsString, OwnedFd)>) -> Result<(), JobError> {
        for (name, file) in files {
            let link = self.path.join(name);
            let made = symlink(self.owner.descriptor(file.as_raw_fd()), &link);
            made.map_err(|error| failure("make the link", &link, &error))?;
            self.files.push(file);
        }
        Ok(())
    }
}

/// Locks a folder until the result is dropped. Returns `None` if the folder does not exist any
/// more. On a file system without locks, the folder is not locked.
fn lock(path: &Path) -> io::Result<Option<Result<Flock<File>, File>>> {
    let begun = Instant::now();
    let mut folder = match File::options().read(true).custom_flags(libc::O_DIRECTORY).open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        folder => folder?,
    };
    let locked = loop {
        match Flock::lock(folder, FlockArg::LockExclusiveNonblock) {
            Ok(locked) => break Ok(locked),
            Err((back, nix::Error::EWOULDBLOCK | nix::Error::EINTR)) if begun.elapsed() < LOCK_TIMEOUT => {
                folder = back;
                std::thread::sleep(LOCK_RETRY);
            }
            Err((
                back,
                nix::Error::EBADF | nix::Error::ENOLCK | nix::Error::EOPNOTSUPP | nix::Error::ENOSYS,
            )) => {
                break Err(back);
            }
            Err((_, error)) => return Err(error.into()),
        }
    };
    let (Ok(opened) | Err(opened)) = locked.as_ref().map(|locked| &**locked);
    let opened = opened.metadata()?;
    // Its last owner may have removed it meanwhile.
    let at_path =
        fs::metadata(path).ok().filter(|found| (found.dev(), found.ino()) == (opened.dev(), opened.ino()));
    Ok(at_path.map(|_| locked))
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

/// Removes the links of an agent that has ended. Returns whether hostbuf had made the folder.
///
/// # Errors
/// The class `Invalid`, if the folder has anything else; then nothing is removed.
fn clear(path: &Path) -> Result<bool, JobError> {
    let failed = |error: io::Error| failure("clear the folder", path, &error);
    let names = names(path).map_err(failed)?;
    let Some(first) = names.first() else { return Ok(false) };
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
    unlink(path, &owner, names).map_err(failed)?;
    Ok(owner.is_made)
}

/// Returns the names of all entries of a folder, in order.
fn names(path: &Path) -> io::Result<Vec<OsString>> {
    let mut names =
        fs::read_dir(path)?.map(|entry| Ok(entry?.file_name())).collect::<io::Result<Vec<OsString>>>()?;
    names.sort();
    Ok(names)
}

/// Returns the owner of a folder, or `None` if it states none.
fn owner_of(path: &Path) -> io::Result<Option<FolderOwner>> {
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
/// made it and nothing else is in it. A folder of another job, or of none, stays as it is.
///
/// # Errors
/// As `flock(2)`, `unlink(2)` and `rmdir(2)`.
pub fn remove(path: &Path, job: u128) -> io::Result<()> {
    let own = || {
        let owner = owner_of(path).unwrap_or_default();
        owner.filter(|owner| owner.job == job && owner.host == process::host_name())
    };
    if own().is_none() {
        return Ok(());
    }
    let Some(_locked) = lock(path)? else { return Ok(()) };
    let Some(owner) = own() else { return Ok(()) };
    unlink(path, &owner, names(path)?)?;
    if !owner.is_made {
        return Ok(());
    }
    match fs::remove_dir(path) {
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOTEMPTY | libc::ENOENT | libc::EBUSY)) => {
            Ok(())
        }
        removed => removed,
    }
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
