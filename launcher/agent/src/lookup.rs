//! Finds the executable of a program.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The reason why a program cannot run, and the exit status that a shell returns in this case.
pub type Refusal = (String, u8);

/// Finds `name` as a shell does: in `PATH`, unless it contains a slash.
pub fn find(name: &OsStr) -> Result<PathBuf, Refusal> {
    let shown = name.to_string_lossy();
    let path = if name.as_bytes().contains(&b'/') {
        PathBuf::from(name)
    } else {
        let path = std::env::var_os("PATH").unwrap_or_else(|| "/usr/bin:/bin".into());
        let mut places = std::env::split_paths(&path).map(|dir| dir.join(name));
        places
            .find(|p| is_executable(p))
            .ok_or_else(|| (format!("program \"{shown}\" is not in PATH"), 127))?
    };
    match fs::metadata(&path) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            Err((format!("program \"{shown}\" does not exist"), 127))
        }
        Err(e) => Err((format!("program \"{shown}\" cannot be read: {e}"), 126)),
        Ok(m) if m.is_dir() => Err((format!("program \"{shown}\" is a directory"), 126)),
        Ok(_) if !is_executable(&path) => Err((format!("program \"{shown}\" is not executable"), 126)),
        Ok(_) => Ok(path),
    }
}

fn is_executable(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|m| m.is_file())
        && nix::unistd::access(path, nix::unistd::AccessFlags::X_OK).is_ok()
}
