//! The folder below which an MPI is installed.

use std::path::{Path, PathBuf};
use std::{fmt, fs};

use crate::engines::Engine;

/// The prefixes of the system. Several MPIs share their folders, and the dynamic linker searches
/// those with libraries by itself.
const SYSTEM: [&str; 2] = ["/usr", "/"];

/// The folders of libraries below a prefix.
const LIBRARIES: [&str; 3] = ["lib", "lib64", "lib/release"];

/// A folder with the folders `bin` and `lib` of an MPI.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MpiPrefix(PathBuf);

impl MpiPrefix {
    /// Returns the possible prefixes of the library at `file`, which has no symbolic links, as in
    /// `lib/libmpi.so.12` and `lib/release/libmpi.so.12`. There are none for a library of the
    /// system.
    pub(crate) fn of_library(file: &Path) -> impl Iterator<Item = MpiPrefix> {
        let prefixes = file.ancestors().skip(2).take(2).map(|prefix| MpiPrefix(prefix.to_owned()));
        prefixes.filter(|prefix| !prefix.is_of_system())
    }

    /// Returns the prefix of a launch command, as in `bin/mpiexec`.
    pub(crate) fn of_command(command: &Path) -> Option<MpiPrefix> {
        Some(MpiPrefix(command.canonicalize().ok()?.parent()?.parent()?.to_owned()))
    }

    /// Returns the first of the commands `names` that exists.
    pub(crate) fn command(&self, names: &[&str]) -> Option<PathBuf> {
        names.iter().map(|name| self.0.join("bin").join(name)).find(|command| command.is_file())
    }

    /// Returns the folder with the libraries of the MPI of `engine`.
    pub(crate) fn libraries(&self, engine: &dyn Engine) -> Option<PathBuf> {
        let folders = LIBRARIES.map(str::to_owned).into_iter();
        let own = format!("lib/{}-linux-gnu", std::env::consts::ARCH);
        let folders = folders.chain(self.is_of_system().then_some(own));
        let has_library = |folder: &PathBuf| {
            let entries = fs::read_dir(folder).into_iter().flatten().flatten();
            entries.into_iter().any(|entry| engine.provides_library(&entry.file_name().to_string_lossy()))
        };
        folders.map(|folder| self.0.join(folder)).find(has_library)
    }

    /// Returns whether this is a prefix of the system.
    pub(crate) fn is_of_system(&self) -> bool {
        SYSTEM.iter().any(|system| self.0 == Path::new(system))
    }
}

impl fmt::Display for MpiPrefix {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.display().fmt(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engines;

    #[test]
    fn a_library_of_the_system_has_no_prefix() {
        let of = |file: &str| -> Vec<PathBuf> {
            MpiPrefix::of_library(Path::new(file)).map(|prefix| prefix.0).collect()
        };
        assert_eq!(of("/opt/mpi/lib/libmpi.so.12"), [Path::new("/opt/mpi"), Path::new("/opt")]);
        assert_eq!(of("/opt/mpi/lib/release/libmpi.so.12")[1], Path::new("/opt/mpi"));
        assert!(of("/usr/lib/libmpi.so.12").is_empty());
    }

    #[test]
    fn the_libraries_of_an_mpi_are_found_from_its_command() {
        let folder = std::env::temp_dir().join(format!("hostbuf-mpi-prefix-{}", std::process::id()));
        for name in ["bin", "lib/release"] {
            fs::create_dir_all(folder.join(name)).unwrap();
        }
        fs::write(folder.join("bin/mpiexec"), "").unwrap();
        fs::write(folder.join("lib/libother.so.1"), "").unwrap();
        let mpi = engines::ALL.iter().find(|engine| engine.option() == "mpich").unwrap();
        let prefix = MpiPrefix::of_command(&folder.join("bin/mpiexec")).unwrap();
        let before = prefix.libraries(*mpi);
        fs::write(folder.join("lib/release/libmpi.so.12"), "").unwrap();
        let after = prefix.libraries(*mpi);
        fs::remove_dir_all(&folder).unwrap();
        assert!(!prefix.is_of_system());
        assert_eq!((before, after), (None, Some(folder.join("lib/release"))));
        assert_eq!(MpiPrefix::of_command(Path::new("/nonexistent/bin/mpiexec")), None);
    }
}
