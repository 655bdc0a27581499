//! Jobs on this host and on simulated hosts.

use std::path::PathBuf;
use std::process::Command;

use crate::{CommandOutput, program, root, skip};

/// Returns the path of the command under test.
#[must_use]
pub fn hostbuf() -> PathBuf {
    program("hostbuf")
}

/// Runs `hostbuf` with `arguments` on this host, outside of simulated hosts.
#[must_use]
pub fn run(arguments: &[&str]) -> CommandOutput {
    CommandOutput::of(Command::new(hostbuf()).args(arguments))
}

/// Runs `ranks` ranks of `program` by `hostbuf run` without MPI, with a buffer of `size` and the
/// options `more`.
#[must_use]
pub fn local(ranks: usize, size: &str, more: &[&str], program: &[&str]) -> CommandOutput {
    let mut command = Command::new(hostbuf());
    command.args(["run", "--launcher", "local", "-n", &ranks.to_string(), "--size", size]);
    CommandOutput::of(command.args(more).arg("--").args(program))
}

/// Runs a shell script on the first of `hosts` simulated hosts (h0, h1, ...), in the repository's
/// folder. scripts/mpienv sets up the MPI `flavour` ($MPIRUN, $MPIRUN_FLAGS, ...); `$HOSTBUF` is
/// the command under test.
#[must_use]
pub fn simulated(hosts: usize, flavour: &str, script: &str) -> CommandOutput {
    CommandOutput::of(&mut simulated_command(hosts, flavour, script))
}

/// Returns the command that [`simulated`] runs.
#[must_use]
pub fn simulated_command(hosts: usize, flavour: &str, script: &str) -> Command {
    let script = format!("set -e\neval \"$(scripts/mpienv {flavour})\"\nset +e\n{script}\n");
    let mut command = Command::new(root().join("scripts/simhosts"));
    command.arg(hosts.to_string()).args(["--", "bash", "-c", &script]);
    command.current_dir(root()).env("HOSTBUF", hostbuf());
    command
}

/// Lists the MPIs of scripts/mpienv that are usable here and have an agent (scripts/build).
#[must_use]
pub fn flavours() -> Vec<String> {
    let listed = CommandOutput::of(Command::new(root().join("scripts/mpienv")).args(["list", "-v"])).ok();
    for line in listed.stderr.lines() {
        skip(&format!("MPI {line}"));
    }
    let has_agent = |flavour: &String| {
        let there = agent_of(flavour).is_file();
        if !there {
            skip(&format!("MPI {flavour}: no agent was built for it (scripts/build)"));
        }
        there
    };
    listed.stdout.lines().map(str::to_owned).filter(has_agent).collect()
}

/// Returns the agent of the build that is made for an MPI of scripts/mpienv, or for its binary
/// interface.
#[must_use]
pub fn agent_of(flavour: &str) -> PathBuf {
    let script = r#". scripts/lib/flavours && flavour_agent "$0""#;
    let mut command = Command::new("bash");
    let outcome = CommandOutput::of(command.args(["-c", script, flavour]).current_dir(root())).ok();
    root().join(format!("target/libexec/hostbuf/hostbuf-agent-{}", outcome.stdout.trim()))
}

/// Returns true if hosts can be simulated here, and records a skip if not.
#[must_use]
pub fn can_simulate() -> bool {
    let able = CommandOutput::of(Command::new(root().join("scripts/simhosts")).arg("--check")).status == 0;
    if !able {
        skip("simulated hosts: namespaces are not allowed here");
    }
    able
}
