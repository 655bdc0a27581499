//! `hostbuf run` starts a program by the MPI to which it is linked.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use hostbuf_tests::{CommandOutput, Scratch, hostbuf, skip};

use crate::engines::{mpi_fixture, under_every_mpi};

/// The launch commands of other MPIs come first in PATH.
#[test]
fn a_program_is_started_by_the_mpi_that_it_loads() {
    let script = format!("{}$HOSTBUF run -n 2 --host h0:2 --size 1M -- $out", mpi_fixture("library_version"));
    under_every_mpi(1, &script, |flavour, outcome| {
        let outcome = outcome.ok();
        let mut ranks = outcome.lines("rank ");
        ranks.sort();
        let name = flavour.trim_end_matches(|c: char| c.is_ascii_digit());
        let major = &flavour[name.len()..];
        let version = match name {
            "openmpi" => format!("Open MPI v{major}."),
            "intelmpi" => format!("Intel(R) MPI Library {major}."),
            _ => format!("MPICH Version: {major}."),
        };
        let words = |line: &String| line.split_whitespace().collect::<Vec<_>>().join(" ");
        let expected = |rank: usize| format!("{rank} of 2 of {version}");
        assert_eq!(ranks.len(), 2, "{flavour}: {outcome:?}");
        for (rank, line) in ranks.iter().enumerate() {
            assert!(words(line).starts_with(&expected(rank)), "{flavour}: {outcome:?}");
        }
    });
}

/// An MPI in a folder, with a program that is linked to its library.
struct OtherMpi {
    folder: Scratch,
}

impl OtherMpi {
    /// Makes one whose mpiexec prints `version` if it is asked for it, and otherwise its own path,
    /// or returns `None` without a compiler.
    fn new(version: &str) -> Option<OtherMpi> {
        let folder = Scratch::new("linked-mpi");
        for name in ["bin", "lib"] {
            fs::create_dir(folder.path(name)).unwrap();
        }
        let compile = |arguments: &[&str]| {
            let mut compiler = Command::new("cc");
            compiler.current_dir(folder.path("")).args(arguments).output().is_ok_and(|o| o.status.success())
        };
        fs::write(folder.path("mpi.c"), "int MPI_Init(void) { return 0; }\n").unwrap();
        fs::write(folder.path("app.c"), "int MPI_Init(void);\nint main(void) { return MPI_Init(); }\n")
            .unwrap();
        let library = ["-shared", "-fPIC", "-Wl,-soname,libmpi.so.12", "-o", "lib/libmpi.so.12", "mpi.c"];
        let program = ["-o", "app", "app.c", "lib/libmpi.so.12", "-Wl,-rpath,$ORIGIN/lib"];
        if !compile(&library) || !compile(&program) {
            skip("programs of an MPI that is not installed: there is no cc");
            return None;
        }
        let mpiexec = folder.path("bin/mpiexec");
        let script =
            format!("#!/bin/sh\n[ \"$1\" = --version ] && echo '{version}' || echo started by $0 >&2\n");
        fs::write(&mpiexec, script).unwrap();
        fs::set_permissions(&mpiexec, fs::Permissions::from_mode(0o755)).unwrap();
        Some(OtherMpi { folder })
    }

    /// Runs its program.
    fn run(&self, options: &[&str]) -> CommandOutput {
        let mut command = Command::new(hostbuf());
        command.args(["run", "-n", "2", "--size", "1M", "--agent", "/bin/true"]).args(options);
        CommandOutput::of(command.arg("--").arg(self.folder.path("app")))
    }
}

#[test]
fn the_command_beside_the_library_comes_before_those_in_path() {
    let Some(mpi) = OtherMpi::new("HYDRA build details:\n    Version:    4.9.9") else { return };
    let outcome = mpi.run(&[]);
    let own = format!("started by {}", mpi.folder.path("bin/mpiexec"));
    assert!(outcome.said().iter().any(|line| line.contains(&own)), "{outcome:?}");
    let outcome = mpi.run(&["--launcher", "mpich"]);
    assert!(outcome.said().iter().any(|line| line.contains(&own)), "{outcome:?}");
    // The job has no ranks of its own MPI, but the user wants it so.
    let outcome = mpi.run(&["--launcher", "local"]);
    assert!(outcome.said().iter().all(|line| !line.contains(&own)), "{outcome:?}");
}

#[test]
fn an_mpi_without_an_engine_is_refused() {
    let Some(mpi) = OtherMpi::new("mpiexec of another MPI 3.1") else { return };
    let outcome = mpi.run(&[]);
    assert_eq!(outcome.status, 82, "{outcome:?}");
    let [line] = outcome.said()[..] else { panic!("{outcome:?}") };
    let path = mpi.folder.path("bin/mpiexec");
    for words in
        ["linked to libmpi.so.12", &path, "an MPI that hostbuf does not support", "hostbuf exec", "--mpirun"]
    {
        assert!(line.contains(words), "{words}: {line}");
    }
}
