//! Finds the executable of a program.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use hostbuf::{ErrorClass, JobError};

/// Finds `name` as a shell does: in `PATH`, unless it contains a slash.
///
/// # Errors
/// The reason why the program cannot run, with the exit status of a shell.
pub fn find(name: &OsStr) -> Result<PathBuf, JobError> {
    let shown = name.to_string_lossy();
    let path = if name.as_bytes().contains(&b'/') {
        PathBuf::from(name)
    } else {
        let path = std::env::var_os("PATH").unwrap_or_else(|| "/usr/bin:/bin".into());
        let mut places = std::env::split_paths(&path).map(|dir| dir.join(name));
        places.find(|p| is_executable(p)).ok_or_else(|| {
            JobError::new(ErrorClass::NotFound, format!("program \"{shown}\" is not in PATH"))
        })?
    };
    match fs::metadata(&path) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            Err(JobError::new(ErrorClass::NotFound, format!("program \"{shown}\" does not exist")))
        }
        Err(e) => {
            Err(JobError::new(ErrorClass::NotExecutable, format!("program \"{shown}\" cannot be read: {e}")))
        }
        Ok(m) if m.is_dir() => {
            Err(JobError::new(ErrorClass::NotExecutable, format!("program \"{shown}\" is a directory")))
        }
        Ok(_) if !is_executable(&path) => {
            Err(JobError::new(ErrorClass::NotExecutable, format!("program \"{shown}\" is not executable")))
        }
        Ok(_) => Ok(path),
    }
}

fn is_executable(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|m| m.is_file())
        && nix::unistd::access(path, nix::unistd::AccessFlags::X_OK).is_ok()
}
