//! The lock of a folder while links in it are made or removed.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use nix::fcntl::{Flock, FlockArg};

/// The time within which other processes make or remove their links.
const LOCK_TIMEOUT: Duration = Duration::from_secs(10);
/// The interval at which a lock is tried again.
const LOCK_RETRY: Duration = Duration::from_millis(5);

/// A folder that is locked until this is dropped. On a file system without locks, it is only open.
#[derive(Debug)]
pub(super) struct FolderLock {
    _folder: Result<Flock<File>, File>,
}

impl FolderLock {
    /// Locks the folder at `path`. Returns `None` if it does not exist any more.
    ///
    /// # Errors
    /// As `open(2)` and `flock(2)`; `EWOULDBLOCK` if another process keeps the lock.
    pub(super) fn of(path: &Path) -> io::Result<Option<FolderLock>> {
        let begun = Instant::now();
        let mut folder = match File::options().read(true).custom_flags(libc::O_DIRECTORY).open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            folder => folder?,
        };
        let locked = loop {
            match Flock::lock(folder, FlockArg::LockExclusiveNonblock) {
                Ok(locked) => break Ok(locked),
                Err((back, nix::Error::EWOULDBLOCK | nix::Error::EINTR))
                    if begun.elapsed() < LOCK_TIMEOUT =>
                {
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
        let at_path = fs::metadata(path)
            .ok()
            .filter(|found| (found.dev(), found.ino()) == (opened.dev(), opened.ino()));
        Ok(at_path.map(|_| FolderLock { _folder: locked }))
    }
}
