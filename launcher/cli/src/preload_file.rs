//! The preloaded object as a file, since `LD_PRELOAD` requires a path.
//!
//! The command contains the object, so `cargo install` is enough. An installation has it next to
//! the command; otherwise it is written to the user's cache, once for each version.

use std::fs;
use std::io::{self, Read, Write};
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
    find(installed_path().as_deref(), folders())
}

/// Returns the path of the object at `installed`, or else in one of `folders`. If a file that
/// exists cannot be read, that is the error, since it should have been used.
fn find(installed: Option<&Path>, folders: Vec<PathBuf>) -> Result<PathBuf> {
    let name = format!("libhostbuf_preload-{:016x}.so", digest());
    let mut unreadable = None;
    let mut usable = |path: &Path| {
        is_ours(path).unwrap_or_else(|source| {
            let doing = format!("reading the preloaded object {}", path.display());
            unreadable.get_or_insert(Error::Os { doing, source });
            false
        })
    };
    if let Some(installed) = installed.filter(|installed| usable(installed)) {
        return Ok(installed.to_owned());
    }
    let mut last = io::Error::other("no folder to write to");
    for dir in folders {
        let path = dir.join(&name);
        if usable(&path) {
            return Ok(path);
        }
        match write(&dir, &path) {
            Ok(()) => return Ok(path),
            Err(error) => last = error,
        }
    }
    Err(unreadable.unwrap_or_else(|| Error::Os {
        doing: "writing the preloaded object into $XDG_CACHE_HOME, ~/.cache or /tmp".into(),
        source: last,
    }))
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

/// Returns the path of the installed object, unless it is missing or cannot be used.
pub(crate) fn installed() -> Option<PathBuf> {
    installed_path().filter(|path| is_ours(path).unwrap_or(false))
}

/// Returns the path that an installed object has: `lib/hostbuf/` next to the `bin/` of this
/// command, as on all hosts.
fn installed_path() -> Option<PathBuf> {
    let executable = std::env::current_exe().ok()?;
    let path = executable.parent()?.parent()?.join("lib/hostbuf/libhostbuf_preload.so");
    can_be_named(&path).then_some(path)
}

/// Returns whether `LD_PRELOAD` can contain `path`: a space or a colon ends a name there.
pub(crate) fn can_be_named(path: &Path) -> bool {
    !path.as_os_str().as_bytes().iter().any(|byte| b" :".contains(byte))
}

/// Returns whether a file contains the object and no other user can change it.
///
/// # Errors
/// The reason why a file that exists cannot be read.
fn is_ours(path: &Path) -> io::Result<bool> {
    let compared = || {
        let own = nix::unistd::geteuid().as_raw();
        let metadata = fs::symlink_metadata(path)?;
        let owned = metadata.uid() == own || metadata.uid() == 0;
        Ok(metadata.is_file()
            && owned
            && metadata.mode() & 0o022 == 0
            && contains_object(&mut fs::File::open(path)?)?)
    };
    compared().or_else(|error: io::Error| match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => Ok(false),
        _ => Err(error),
    })
}

/// Returns whether a file contains the object and nothing else. It takes no memory, so a limit of
/// the process (`ulimit -d`) does not keep a rank from its object.
fn contains_object(file: &mut fs::File) -> io::Result<bool> {
    let mut rest = OBJECT;
    let mut part = [0; 8192];
    loop {
        match file.read(&mut part) {
            Ok(0) => return Ok(rest.is_empty()),
            Ok(length) => match rest.strip_prefix(&part[..length]) {
                Some(behind) => rest = behind,
                None => return Ok(false),
            },
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
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
        Err(nix::Error::EEXIST) if is_ours(path)? => Ok(()),
        Err(e) => Err(e.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a new folder, which the test removes.
    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("hostbuf-preload-{name}-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        folder
    }

    #[test]
    fn only_a_complete_object_is_used() {
        let folder = folder("complete");
        let path = folder.join("object.so");
        assert!(!is_ours(&path).unwrap());
        assert!(!is_ours(&path.join("below a file")).unwrap());
        install(&path).unwrap();
        assert!(is_ours(&path).unwrap());
        assert_eq!(find(Some(&path), Vec::new()).unwrap(), path);
        for wrong in [&OBJECT[1..], &OBJECT[..OBJECT.len() - 1], &[OBJECT, b"x"].concat(), b""] {
            fs::write(&path, wrong).unwrap();
            assert!(!is_ours(&path).unwrap());
        }
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn an_object_that_cannot_be_read_is_the_error_unless_another_is_found() {
        let folder = folder("unreadable");
        // A link to itself: opening a file below it fails, for every user.
        let circle = folder.join("circle");
        std::os::unix::fs::symlink(&circle, &circle).unwrap();
        let installed = circle.join("object.so");
        let error = find(Some(&installed), vec![PathBuf::from("/proc/hostbuf")]).unwrap_err().to_string();
        let words = format!("reading the preloaded object {}: Too many levels", installed.display());
        assert!(error.starts_with(&words), "{error}");
        let written = find(Some(&installed), vec![folder.join("cache")]).unwrap();
        assert!(written.starts_with(folder.join("cache")) && is_ours(&written).unwrap());
        let error = find(None, vec![PathBuf::from("/proc/hostbuf")]).unwrap_err().to_string();
        assert!(error.starts_with("writing the preloaded object into "), "{error}");
        fs::remove_dir_all(folder).unwrap();
    }
}
