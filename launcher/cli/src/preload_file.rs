//! The preloaded object as a file, since `LD_PRELOAD` requires a path.
//!
//! The command contains the object, so `cargo install` is enough. An installation has it next to
//! the command; otherwise it is written to the user's cache, once for each version.

use std::fs;
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use hostbuf::{Error, Result};

/// The object from the build script.
const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/libhostbuf_preload.so"));

/// Returns the path of a file that contains the object.
///
/// # Errors
/// [`Error::Os`] if there is none and none can be written.
pub(crate) fn path() -> Result<PathBuf> {
    let name = format!("libhostbuf_preload-{:016x}.so", digest());
    if let Some(installed) = installed() {
        return Ok(installed);
    }
    let mut last = io::Error::other("no folder to write to");
    for dir in folders() {
        let path = dir.join(&name);
        if is_ours(&path) {
            return Ok(path);
        }
        match write(&dir, &path) {
            Ok(()) => return Ok(path),
            Err(error) => last = error,
        }
    }
    Err(Error::Os {
        doing: "writing the preloaded object into $XDG_CACHE_HOME, ~/.cache or /tmp".into(),
        source: last,
    })
}

/// Writes the object to `path` for an installation, completely or not at all.
///
/// # Errors
/// [`Error::Os`].
pub(crate) fn install(path: &Path) -> Result<()> {
    let failed = |source| Error::Os { doing: format!("writing {}", path.display()), source };
    let fresh = path.with_extension(format!("{}.new", std::process::id()));
    let mut file =
        fs::File::options().write(true).create_new(true).mode(0o755).open(&fresh).map_err(failed)?;
    let written = file.write_all(OBJECT).and_then(|()| fs::rename(&fresh, path));
    written.inspect_err(|_| drop(fs::remove_file(&fresh))).map_err(failed)
}

fn digest() -> u64 {
    // FNV-1a is enough to distinguish versions, since the contents are compared anyway.
    OBJECT.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &b| (hash ^ u64::from(b)).wrapping_mul(0x100_0000_01b3))
}

/// Returns the path of the installed object: `lib/hostbuf/` next to the `bin/` of this command, as
/// on all hosts.
pub(crate) fn installed() -> Option<PathBuf> {
    let executable = std::env::current_exe().ok()?;
    let path = executable.parent()?.parent()?.join("lib/hostbuf/libhostbuf_preload.so");
    (can_be_named(&path) && is_ours(&path)).then_some(path)
}

/// Returns whether `LD_PRELOAD` can contain `path`: a space or a colon ends a name there.
pub(crate) fn can_be_named(path: &Path) -> bool {
    !path.as_os_str().as_bytes().iter().any(|byte| b" :".contains(byte))
}

/// Returns whether a file contains the object and no other user can change it.
fn is_ours(path: &Path) -> bool {
    let own = nix::unistd::geteuid().as_raw();
    let trusted = |m: &fs::Metadata| m.is_file() && (m.uid() == own || m.uid() == 0) && m.mode() & 0o022 == 0;
    fs::symlink_metadata(path).is_ok_and(|m| trusted(&m)) && fs::read(path).is_ok_and(|bytes| bytes == OBJECT)
}

fn folders() -> Vec<PathBuf> {
    let own = nix::unistd::geteuid();
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).filter(|p| p.is_absolute());
    let home = std::env::var_os("HOME").map(|h| PathBuf::from(h).join(".cache"));
    let user = nix::unistd::User::from_uid(own).ok().flatten().map(|u| u.dir.join(".cache"));
    let mut list: Vec<PathBuf> =
        [cache, home, user].into_iter().flatten().map(|p| p.join("hostbuf")).collect();
    list.push(std::env::temp_dir().join(format!("hostbuf-{own}")));
    list.retain(|folder| can_be_named(folder));
    list
}

/// Writes the object to a file without a name and links it to `path` when it is complete, so that
/// several processes may do so at the same time.
fn write(dir: &Path, path: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    let metadata = fs::symlink_metadata(dir)?;
    if !metadata.is_dir() || metadata.uid() != nix::unistd::geteuid().as_raw() {
        return Err(io::Error::other(format!("{} belongs to another user", dir.display())));
    }
    let mut file = fs::File::options().write(true).mode(0o500).custom_flags(libc::O_TMPFILE).open(dir)?;
    file.write_all(OBJECT)?;
    let nameless = format!("/proc/self/fd/{}", file.as_raw_fd());
    let follow = nix::fcntl::AtFlags::AT_SYMLINK_FOLLOW;
    let cwd = nix::fcntl::AT_FDCWD;
    match nix::unistd::linkat(cwd, nameless.as_str(), cwd, path, follow) {
        Ok(()) => Ok(()),
        // Another process was faster, or another file has the name.
        Err(nix::Error::EEXIST) if is_ours(path) => Ok(()),
        Err(e) => Err(e.into()),
    }
}
