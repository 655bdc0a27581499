//! The search of programs in `PATH`.

use std::path::PathBuf;

use nix::unistd::{AccessFlags, access};

/// Returns the path of the first executable file `name` in `PATH`.
pub(crate) fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let mut places = std::env::split_paths(&path).map(|folder| folder.join(name));
    places.find(|p| p.is_file() && access(p, AccessFlags::X_OK).is_ok())
}
