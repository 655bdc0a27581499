//! The launch commands that are installed beside the MPI's library that a program loads.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::elf::Elf;
use crate::mpi_prefix::MpiPrefix;

/// The names of the commands. The first one that exists counts: some MPIs come with a script
/// `mpirun`, which starts the `mpiexec` of another MPI if that comes first in PATH.
const NAMES: [&str; 2] = ["mpiexec", "mpirun"];

/// Returns the launch command in each of `../bin` and `../../bin` of the folder from which the
/// image of a program loads the library `library`, as in `lib/libmpi.so.12`,
/// `lib/release/libmpi.so.12` and `bin/mpiexec` of one installation. There are none beside the
/// libraries of the system.
pub(super) fn beside(image: &Path, library: &str) -> Vec<PathBuf> {
    let file = loaded(image, library);
    file.iter().flat_map(|file| MpiPrefix::of_library(file)).filter_map(|p| p.command(&NAMES)).collect()
}

/// Returns the file of the library `library` that the dynamic linker loads for a program. The
/// dynamic linker is asked, since it alone knows its search paths. The program does not run.
fn loaded(image: &Path, library: &str) -> Option<PathBuf> {
    let elf = Elf::read(&fs::File::open(image).ok()?).ok()??;
    let output =
        Command::new(elf.interpreter?).arg("--list").arg(image).stdin(Stdio::null()).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let file = text.lines().find_map(|line| listed(line, library))?;
    file.canonicalize().ok()
}

/// Returns the path in a line `libmpi.so.12 => /opt/mpi/lib/libmpi.so.12 (0x00007f1612000000)`.
fn listed(line: &str, library: &str) -> Option<PathBuf> {
    let path = line.trim().strip_prefix(library)?.strip_prefix(" => ")?;
    let path = path.rsplit_once(" (0x").map_or(path, |(path, _)| path);
    path.starts_with('/').then(|| path.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_dynamic_linker_states_the_file_of_a_library() {
        let own = std::env::current_exe().unwrap();
        let file = loaded(&own, "libc.so.6").unwrap();
        assert!(file.is_absolute() && file.is_file(), "{}", file.display());
        assert_eq!(loaded(&own, "libmpi.so.12"), None);
        assert_eq!(loaded(Path::new("/etc/passwd"), "libc.so.6"), None);
        assert_eq!(beside(&own, "libc.so.6"), [] as [PathBuf; 0]);
    }

    #[test]
    fn lines_of_the_dynamic_linker_are_read() {
        let of = |line| listed(line, "libmpi.so.12");
        let path = Some("/opt/my mpi/lib/libmpi.so.12".into());
        assert_eq!(of("\tlibmpi.so.12 => /opt/my mpi/lib/libmpi.so.12 (0x00007f1612000000)"), path);
        for other in [
            "",
            "\tlibmpi.so.12 => not found",
            "\tlibmpi.so.120 => /opt/lib/libmpi.so.120 (0x1)",
            "\tlinux-vdso.so.1 (0x00007fb8d6a79000)",
            "\t/lib64/ld-linux-x86-64.so.2 (0x00007fb8d6a7b000)",
        ] {
            assert_eq!(of(other), None, "{other}");
        }
    }
}
