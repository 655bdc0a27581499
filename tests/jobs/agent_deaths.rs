//! The death of an agent or a rank before all ranks have the buffer, under every engine: the
//! message names the host.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

use hostbuf_tests::{CommandOutput, Scratch, agent_of, can_simulate, flavours, simulated};

use crate::running_job::hold;
use crate::slurm::in_allocation;

/// The line of the launcher about a killed agent, up to the remedy.
const AGENT_LINE: &str =
    "hostbuf run: the agent on h1 was ended before all ranks had the buffer by signal 9 (SIGKILL). ";
/// The line if the agent of the other host notices the loss before Open MPI 5 does, and so is the
/// one that is named.
const ENGINE_LINE: &str =
    "hostbuf run: Open MPI 5, which runs the agents, ended before all ranks had the buffer ";
/// The line of the launcher about a killed rank, up to the number of its process.
const RANK_LINE: &str = "hostbuf run: rank 1 on h1 (process ";
/// The line about the other rank, which the engine ends then.
const OTHER_RANK_LINE: &str = "hostbuf run: rank 0 on h0 (process ";

/// The options of a job of Slurm on two hosts.
const SLURM: &str = "--launcher slurm --host h0:1,h1:1 --launcher-arg --mpi=none";

/// A folder with a program that becomes the agent, and is killed on h1 once rank 0 is held in its
/// `hostbuf exec`.
struct DyingAgent {
    folder: Scratch,
    program: String,
}

impl DyingAgent {
    fn new(flavour: &str, engine: &str) -> DyingAgent {
        let folder = Scratch::new(&format!("dying-agent-{engine}"));
        let agent = agent_of(flavour);
        let program = folder.path(&agent.file_name().expect("a file").to_string_lossy());
        let script = format!(
            "#!/bin/bash\n\
             if [[ $(hostname) == h1 ]]; then\n\
             (until [[ -e {held} ]]; do read -r -t 0.01 <> <(:); done; kill -KILL $$) </dev/null >/dev/null 2>&1 &\n\
             fi\n\
             exec {agent} \"$@\"\n",
            held = folder.path("held"),
            agent = agent.display(),
        );
        fs::write(&program, script).expect("the folder is writable");
        fs::set_permissions(&program, Permissions::from_mode(0o755)).expect("our own file");
        DyingAgent { folder, program }
    }

    /// Returns the options of a job that this program serves.
    fn options(&self, engine: &str) -> String {
        format!("{engine} --agent {}", self.program)
    }
}

/// Returns a shell script that runs a job of two ranks, of which one is held or ends at a place
/// before its main. `options` are those of the job.
fn script(rank: usize, place: &str, then: &str, file: &str, options: &str) -> String {
    format!(
        "export LD_PRELOAD={} HOLD_RANK={rank} HOLD_AT={place} HOLD_THEN={then} HOLD_FILE={file}\n\
         $HOSTBUF run --quiet -n 2 {options} --size 1M -- sleep 1000",
        hold()
    )
}

/// Returns the options of a job of an MPI on two hosts.
fn options(flavour: &str) -> String {
    let mut options = "--host h0:1,h1:1 --mpirun $MPIRUN".to_owned();
    // Open MPI passes no variables on by itself.
    if flavour.starts_with("openmpi") {
        for name in ["LD_PRELOAD", "HOLD_RANK", "HOLD_AT", "HOLD_THEN", "HOLD_FILE"] {
            options += &format!(" --launcher-arg -x --launcher-arg {name}");
        }
    }
    options
}

/// Asserts that the launcher prints one line, which begins with one of `starts`.
#[track_caller]
fn assert_line(engine: &str, outcome: &CommandOutput, status: i32, starts: &[&str]) {
    let lines: Vec<&str> = outcome.stderr.lines().filter(|line| line.starts_with("hostbuf run: ")).collect();
    let is_expected = |line: &str| starts.iter().any(|start| line.starts_with(start));
    assert!(lines.len() == 1 && is_expected(lines[0]), "{engine}: {outcome:?}");
    assert_eq!(outcome.status, status, "{engine}: {outcome:?}");
}

#[test]
fn a_killed_agent_of_an_mpi_is_named_by_its_host() {
    if !can_simulate() {
        return;
    }
    for flavour in flavours() {
        let agent = DyingAgent::new(&flavour, &flavour);
        let script = script(0, "exec", "", &agent.folder.path("held"), &agent.options(&options(&flavour)));
        let starts = [AGENT_LINE, ENGINE_LINE];
        let starts = if flavour == "openmpi5" { &starts[..] } else { &starts[..1] };
        assert_line(&flavour, &simulated(2, &flavour, &script), 86, starts);
    }
}

#[test]
fn a_killed_agent_of_slurm_is_named_by_its_host() {
    let agent = DyingAgent::new("openmpi4", "slurm");
    let script = script(0, "exec", "", &agent.folder.path("held"), &agent.options(SLURM));
    if let Some(outcome) = in_allocation(&script) {
        assert_line("slurm", &outcome, 86, &[AGENT_LINE]);
    }
}

/// The engine ends the other rank then, which must not be taken for the cause. Most engines do so
/// within half a millisecond; if the hosts have fewer cores than running threads, as in the
/// simulation, the agent of that host may know of its loss first.
#[test]
fn a_killed_rank_of_an_mpi_is_named() {
    if !can_simulate() {
        return;
    }
    for flavour in flavours() {
        let folder = Scratch::new(&format!("dying-rank-{flavour}"));
        let script = script(1, "image", "die", &folder.path("held"), &options(&flavour));
        let starts = [RANK_LINE, OTHER_RANK_LINE];
        let starts = if flavour == "openmpi4" { &starts[..1] } else { &starts[..] };
        assert_line(&flavour, &simulated(2, &flavour, &script), 87, starts);
    }
}

#[test]
fn a_killed_rank_of_slurm_is_named() {
    let folder = Scratch::new("dying-rank-slurm");
    if let Some(outcome) = in_allocation(&script(1, "image", "die", &folder.path("held"), SLURM)) {
        assert_line("slurm", &outcome, 87, &[RANK_LINE]);
    }
}
