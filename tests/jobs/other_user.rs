//! Another user of this machine, `nobody`, as whom root runs programs. That user can enter neither
//! root's home directory nor a clone below it.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

use hostbuf_tests::{hostbuf, root, skip};
use nix::sys::statvfs::{FsFlags, statvfs};

const UID: u32 = 65534;

/// The other user, with copies of the programs that it runs in a directory that it can enter.
/// Dropping this removes the directory.
pub struct OtherUser {
    /// The directory, laid out as an installation (`bin`, `lib/hostbuf`) and owned by root.
    folder: PathBuf,
}

impl OtherUser {
    /// Prepares a folder with the command in it. Without root, records `what` as skipped.
    pub fn new(what: &str) -> Option<OtherUser> {
        if !nix::unistd::geteuid().is_root() {
            skip(&format!("{what}: only root can become another user"));
            return None;
        }
        let Some(place) = place_for_programs() else {
            skip(&format!(
                "{what}: no folder for temporary files lets another user run (set-user-ID) programs"
            ));
            return None;
        };
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let folder = place.join(format!("hostbuf-test-{}-{number}", std::process::id()));
        fs::create_dir(&folder).expect("the folder is new");
        let other = OtherUser { folder };
        open_to_all(&other.folder);
        for below in ["bin", "lib", "lib/hostbuf"] {
            let path = other.folder.join(below);
            fs::create_dir(&path).expect("the folder is new");
            open_to_all(&path);
        }
        other.copy(&hostbuf(), "bin/hostbuf");
        for object in ["libhostbuf_register.so", "libhostbuf_register_all.so"] {
            let built = root().join("target/lib/hostbuf").join(object);
            if built.is_file() {
                other.copy(&built, &format!("lib/hostbuf/{object}"));
            }
        }
        Some(other)
    }

    /// Copies a program to where the other user can run it, and returns the copy's path.
    pub fn program(&self, program: &str) -> String {
        let name = Path::new(program).file_name().expect("a program's path").to_str().expect("UTF-8");
        self.copy(Path::new(program), &format!("bin/{name}"))
    }

    fn copy(&self, from: &Path, to: &str) -> String {
        let to = self.folder.join(to);
        fs::copy(from, &to).unwrap_or_else(|error| panic!("{} to {}: {error}", from.display(), to.display()));
        open_to_all(&to);
        to.to_str().expect("UTF-8").to_owned()
    }

    /// Returns the path of the copy of the command under test.
    pub fn hostbuf(&self) -> PathBuf {
        self.folder.join("bin/hostbuf")
    }

    /// Creates a directory that the other user owns.
    pub fn own_folder(&self, name: &str) -> PathBuf {
        let path = self.folder.join(name);
        fs::create_dir(&path).expect("the folder is new");
        chown(&path, Some(UID), Some(UID)).expect("root gives files away");
        path
    }

    /// Makes the other user run `command`, with `temporary` as the folder for temporary files.
    pub fn runs(&self, command: &mut Command, temporary: &Path) {
        // HOME remains root's, so the other user cannot use the object that root has written there.
        command.uid(UID).gid(UID).current_dir(&self.folder).env("HOME", "/root").env("TMPDIR", temporary);
    }

    /// Returns a command that the other user runs, as described at [`OtherUser::runs`].
    pub fn command(&self, program: impl AsRef<Path>) -> Command {
        let temporary = self.folder.join("temporary");
        if !temporary.exists() {
            self.own_folder("temporary");
        }
        let mut command = Command::new(program.as_ref());
        self.runs(&mut command, &temporary);
        command
    }
}

impl Drop for OtherUser {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Lets all users read and run a file or enter a directory, whatever the umask is.
fn open_to_all(path: &Path) {
    fs::set_permissions(path, Permissions::from_mode(0o755)).expect("our own file");
}

/// Returns the first directory for temporary files that all users can enter, on a file system
/// mounted without noexec and nosuid.
fn place_for_programs() -> Option<PathBuf> {
    let entered = |path: &Path| {
        path.ancestors()
            .all(|p| fs::metadata(p).is_ok_and(|m| m.is_dir() && m.permissions().mode() & 0o001 != 0))
    };
    let runs = |path: &Path| {
        statvfs(path).is_ok_and(|fs| !fs.flags().intersects(FsFlags::ST_NOSUID | FsFlags::ST_NOEXEC))
    };
    let places = [std::env::temp_dir(), "/tmp".into(), "/var/tmp".into()];
    places.into_iter().find(|place| place.is_absolute() && entered(place) && runs(place))
}
