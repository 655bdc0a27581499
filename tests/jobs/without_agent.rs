//! The command alone, without an agent for an MPI, as `cargo install` leaves it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use hostbuf_tests::{CommandOutput, Scratch, fixture, hostbuf};

/// Runs the command from a folder without agents, with an mpirun of Open MPI first in PATH.
fn alone(arguments: &[&str]) -> CommandOutput {
    let folder = Scratch::new("without-agent");
    fs::copy(hostbuf(), folder.path("hostbuf")).unwrap();
    fs::write(folder.path("mpirun"), "#!/bin/sh\necho 'mpirun (Open MPI) 4.1.4'\n").unwrap();
    fs::set_permissions(folder.path("mpirun"), fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", folder.path(""), std::env::var("PATH").unwrap());
    let mut command = Command::new(folder.path("hostbuf"));
    CommandOutput::of(command.args(["run", "-n", "2", "--size", "1M"]).args(arguments).env("PATH", path))
}

#[test]
fn a_program_without_an_mpi_runs_on_this_host() {
    let show = fixture("cc", "show.c", &[]).unwrap().display().to_string();
    let note =
        "no agent for Open MPI 4 is installed, so the ranks start without an MPI, as with --launcher local";
    let outcome = alone(&["--", &show]).ok();
    assert_eq!(outcome.lines("buffer ").len(), 2, "{outcome:?}");
    assert_eq!(outcome.said(), [format!("hostbuf run: {note}")]);
    let quiet = alone(&["--quiet", "--", &show]).ok();
    assert_eq!((quiet.lines("buffer ").len(), quiet.said().len()), (2, 0), "{quiet:?}");
}

#[test]
fn whoever_names_an_mpi_or_hosts_is_asked_for_an_agent() {
    for words in
        [&["--launcher", "openmpi"][..], &["--host", "localhost:2"], &["--launcher-arg", "--verbose"]]
    {
        let outcome = alone(&[words, &["--", "true"]].concat());
        assert_eq!(outcome.status, 82, "{words:?}: {outcome:?}");
        let [line] = outcome.said()[..] else { panic!("{words:?}: {outcome:?}") };
        assert!(line.contains(" contains hostbuf-agent-openmpi4"), "{words:?}: {line}");
    }
}
