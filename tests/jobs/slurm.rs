//! Slurm: an allocation on four simulated hosts, with consumable resources (`cons_tres`).

use std::process::Command;

use hostbuf_tests::{CommandOutput, fixture, hostbuf, root, skip};

use crate::engines::{PLACE, places};

/// Runs a shell script inside an allocation of 4 hosts x 2 ranks. Returns `None` if Slurm cannot
/// run.
pub fn in_allocation(script: &str) -> Option<CommandOutput> {
    let simslurm = root().join("scripts/simslurm");
    if CommandOutput::of(Command::new(&simslurm).arg("--check")).status != 0 {
        skip(if !nix::unistd::geteuid().is_root() {
            "Slurm: only root can start its daemons"
        } else {
            "Slurm: slurmctld, slurmd and srun are not here (scripts/install-deps slurm)"
        });
        return None;
    }
    let mut command = Command::new(&simslurm);
    command.args(["4", "--", "salloc", "--quiet", "-N4", "-n8", "bash", "-c", script]);
    Some(CommandOutput::of(command.current_dir(root()).env("HOSTBUF", hostbuf())))
}

fn show() -> String {
    fixture("cc", "show.c", &[]).unwrap().display().to_string()
}

/// Asserts that each of `ranks` ranks printed the buffer at the common address.
#[track_caller]
fn assert_shown(outcome: &CommandOutput, ranks: usize, bytes: u64) {
    let lines = outcome.lines("buffer ");
    assert_eq!(lines.len(), ranks, "{outcome:?}");
    assert!(lines.iter().all(|l| l.starts_with(&format!("0x550000000000 {bytes} "))), "{outcome:?}");
}

#[test]
fn srun_starts_agents_and_ranks_side_by_side_in_one_allocation() {
    let script =
        format!("$HOSTBUF run --launcher slurm -n 8 --launcher-arg --mpi=pmix --size 4M -- {}", show());
    if let Some(outcome) = in_allocation(&script) {
        assert_shown(&outcome.ok(), 8, 4 << 20);
    }
}

#[test]
fn ranks_of_srun_have_the_variables_of_every_engine() {
    let mut expected = places(4, 2);
    expected.sort();
    for line in [
        "$HOSTBUF run --launcher slurm -n 8 --launcher-arg --mpi=pmix --size 1M --",
        "srun --mpi=pmix -n 8 $HOSTBUF exec --size 1M --",
    ] {
        let Some(outcome) = in_allocation(&format!("{line} sh -c '{PLACE}'")) else { return };
        let mut printed = outcome.ok().lines("place ");
        printed.sort();
        assert_eq!(printed, expected, "{line}");
    }
}

#[test]
fn ranks_of_srun_are_bound_to_nodes_by_themselves() {
    let rank = "read -r _ policy _ </proc/self/numa_maps; echo rank $policy ${HOSTBUF_NUMA_NODE-unset}";
    let options = "--launcher slurm -n 8 --launcher-arg --mpi=pmix --size 4M --bind node -v";
    let Some(outcome) = in_allocation(&format!("$HOSTBUF run {options} -- bash -c '{rank}'")) else { return };
    let outcome = outcome.ok();
    let lines = outcome.lines("rank ");
    assert!(outcome.stderr.contains(" --overlap --cpu-bind=none "), "{outcome:?}");
    if outcome.stderr.contains("is bound already") {
        return skip("binding under Slurm: the tests run on some CPUs of the host only");
    }
    let is_bound = |line: &String| {
        line.strip_prefix("prefer:")
            .is_some_and(|nodes| nodes.split_once(' ').is_some_and(|(preferred, node)| preferred == node))
    };
    assert!(lines.len() == 8 && lines.iter().all(is_bound), "{outcome:?}");
}

#[test]
fn srun_registers_in_the_first_rank_of_each_host() {
    if !root().join("target/lib/hostbuf/libhostbuf_register.so").is_file() {
        return skip("registering before main under Slurm: the object is not built (scripts/build)");
    }
    let registered = fixture("cc", "registered.c", &["-ldl"]).unwrap().display().to_string();
    let options = "--launcher slurm -n 8 --launcher-arg --mpi=pmix --size 4M --register mlock:optional";
    let Some(outcome) = in_allocation(&format!("$HOSTBUF run {options} -- {registered}")) else { return };
    let lines = outcome.ok().lines("alone ");
    let ends = |end: &str| lines.iter().filter(|line| line.ends_with(end)).count();
    let counts = (ends(" early 4096 now 4096 has mlock@0x550000000000+4194304"), ends(" early 0 now 0 has"));
    assert_eq!(counts, (4, 4), "{lines:?}");
}

#[test]
fn srun_runs_several_programs_as_one_job() {
    let show = show();
    let script = format!(
        "$HOSTBUF run --launcher slurm -n 2 --launcher-arg --mpi=pmix --size 4M -- {show} : -n 6 -- {show} 0 'a b'"
    );
    if let Some(outcome) = in_allocation(&script) {
        assert_shown(&outcome.ok(), 8, 4 << 20);
    }
}

#[test]
fn both_mpiruns_take_the_hosts_from_the_allocation() {
    for flavour in ["openmpi4", "mpich4"] {
        let script = format!(
            "eval \"$(scripts/mpienv {flavour})\" && $HOSTBUF run --mpirun $MPIRUN -n 8 --size 4M -- {}",
            show()
        );
        if let Some(outcome) = in_allocation(&script) {
            assert_shown(&outcome.ok(), 8, 4 << 20);
        }
    }
}

#[test]
fn srun_with_hostbuf_exec_needs_no_launcher() {
    let script = format!(
        "srun --mpi=pmix $HOSTBUF exec --size 4M -- {0} && srun $HOSTBUF exec --size 8M -- {0}",
        show()
    );
    if let Some(outcome) = in_allocation(&script) {
        let outcome = outcome.ok();
        let with = |bytes: u64| {
            outcome.lines("buffer ").iter().filter(|l| l.contains(&format!(" {bytes} "))).count()
        };
        assert_eq!((with(4 << 20), with(8 << 20)), (8, 8), "{outcome:?}");
    }
}

#[test]
fn the_exit_status_of_a_rank_passes_through_srun() {
    let script =
        format!("$HOSTBUF run --launcher slurm -n 8 --launcher-arg --mpi=pmix --size 4M -- {} 9", show());
    if let Some(outcome) = in_allocation(&script) {
        assert_eq!(outcome.status, 9, "{outcome:?}");
    }
}

#[test]
fn a_signal_to_the_job_step_reaches_the_ranks() {
    // Slurm's --signal sends to the step's srun. The launcher passes the signal on as the engine
    // would.
    let script = "$HOSTBUF run --launcher slurm -n 2 --launcher-arg --mpi=none --size 4M -- \
                  bash -c 'trap \"echo usr1; exit 0\" USR1; echo ready; while :; do read -t 0.1 <> <(:); done' > $SIMHOSTS_DIR/out &
                  p=$!
                  for i in $(seq 300); do [ $(grep -c ready $SIMHOSTS_DIR/out) = 2 ] && break; read -t 0.05 <> <(:); done
                  kill -USR1 $p; wait $p; echo status $?; cat $SIMHOSTS_DIR/out";
    if let Some(outcome) = in_allocation(script) {
        assert!(outcome.stdout.contains("status 0"), "{outcome:?}");
        assert_eq!(outcome.lines("usr1").len(), 2, "{outcome:?}");
    }
}

#[test]
fn outside_an_allocation_the_error_says_so_and_nothing_is_queued() {
    let mut command = Command::new(hostbuf());
    command.args(["run", "--launcher", "slurm", "--size", "1M", "--", "true"]).env_remove("SLURM_JOB_ID");
    let outcome = CommandOutput::of(&mut command);
    assert_eq!((outcome.status, outcome.said().len()), (82, 1), "{outcome:?}");
    assert!(outcome.stderr.contains("not inside a Slurm allocation"), "{outcome:?}");
}
