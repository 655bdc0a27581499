//! Behaviour that every engine has under `hostbuf run` and `hostbuf exec`.

use std::process::Command;

use hostbuf_tests::{CommandOutput, can_simulate, fixture, flavours, hostbuf, local, simulated, skip};

fn show() -> String {
    fixture("cc", "show.c", &[]).unwrap().display().to_string()
}

/// Runs `script` on `hosts` simulated hosts under every installed MPI.
pub fn under_every_mpi(
    hosts: usize,
    script: &str,
    mut check: impl FnMut(&str, hostbuf_tests::CommandOutput),
) {
    if can_simulate() {
        for flavour in flavours() {
            check(&flavour, simulated(hosts, &flavour, script));
        }
    }
}

/// Returns the shell commands that build tests/fixtures/`name`.c by the MPI's own compiler, as
/// `$out`.
pub fn mpi_fixture(name: &str) -> String {
    format!(
        "mkdir -p target/fixtures; out=$PWD/target/fixtures/{name}-$MPI_FLAVOUR; \
         $MPICC -O1 -o $out.$$ tests/fixtures/{name}.c && mv $out.$$ $out || exit 90\n"
    )
}

#[test]
fn hostbuf_exec_alone_gives_every_host_of_an_mpirun_its_buffer() {
    let script = format!(
        "$MPIRUN $MPIRUN_FLAGS $MPI_HOSTS_OPTION h0:2,h1:2 -np 4 $HOSTBUF exec --size 4M -- {}",
        show()
    );
    under_every_mpi(2, &script, |flavour, outcome| {
        let outcome = outcome.ok();
        let lines = outcome.lines("buffer ");
        assert_eq!(lines.len(), 4, "{flavour}: {outcome:?}");
        assert!(lines.iter().all(|l| l.starts_with("0x550000000000 4194304 ")), "{flavour}: {outcome:?}");
    });
}

/// Shell commands that print the place of a rank in its job.
pub const PLACE: &str =
    "echo place $HOSTBUF_RANK of $HOSTBUF_RANKS, $HOSTBUF_LOCAL_RANK of $HOSTBUF_LOCAL_SIZE";

/// Returns the places of `hosts` times `each` ranks, as [`PLACE`] prints them.
pub fn places(hosts: usize, each: usize) -> Vec<String> {
    let size = hosts * each;
    (0..size).map(|rank| format!("{rank} of {size}, {} of {each}", rank % each)).collect()
}

/// Returns the places that the ranks have printed.
fn printed(outcome: &CommandOutput) -> Vec<String> {
    let mut printed = outcome.lines("place ");
    printed.sort();
    printed
}

#[test]
fn ranks_have_the_same_variables_under_every_engine() {
    let of_run = "$HOSTBUF run -n 4 --host h0:2,h1:2 --mpirun $MPIRUN --size 1M -- sh -c \"$place\"";
    let of_exec =
        "$MPIRUN $MPIRUN_FLAGS $MPI_HOSTS_OPTION h0:2,h1:2 -np 4 $HOSTBUF exec --size 1M -- sh -c \"$place\"";
    // The variables of an enclosing job, which nothing removes.
    let inherited = "export HOSTBUF_RANK=3 HOSTBUF_RANKS=5 HOSTBUF_LOCAL_RANK=3 HOSTBUF_LOCAL_SIZE=5";
    let inside = format!(
        "$HOSTBUF run --launcher local -n 2 --size 1M -- sh -c '[ $HOSTBUF_RANK = 0 ] || exec {of_exec}'"
    );
    for line in
        [of_run, of_exec, &format!("{inherited}; {of_run}"), &format!("{inherited}; {of_exec}"), &inside]
    {
        under_every_mpi(2, &format!("export place='{PLACE}'; {line}"), |flavour, outcome| {
            assert_eq!(printed(&outcome.ok()), places(2, 2), "{flavour}: {line}");
        });
    }
}

#[test]
fn ranks_have_the_same_variables_without_an_mpi() {
    assert_eq!(printed(&local(3, "1M", &[], &["sh", "-c", PLACE]).ok()), places(1, 3));
    // A job inside a rank is neither that rank nor its size.
    let inner = |ranks: &str, command: &str| {
        let script = format!("[ $HOSTBUF_RANK = 0 ] || exec $HOSTBUF {command} --size 1M -- sh -c '{PLACE}'");
        let mut outer = Command::new(hostbuf());
        outer.args(["run", "--launcher", "local", "-n", ranks, "--size", "1M", "--", "sh", "-c", &script]);
        printed(&CommandOutput::of(outer.env("HOSTBUF", hostbuf())).ok())
    };
    assert_eq!(inner("2", "run --launcher local -n 3"), places(1, 3));
    assert_eq!(inner("2", "exec"), places(1, 1));
}

#[test]
fn agents_start_only_on_hosts_with_ranks_also_with_a_host_file() {
    // Starts two ranks on three hosts with two slots each, so only h0 has ranks. The process lists
    // of the hosts show which ones had agents.
    let script = format!(
        "printf 'h0 slots=2\\nh1 slots=2\\nh2 slots=2\\n' > $SIMHOSTS_DIR/list
         $HOSTBUF run -v -n 2 --hostfile $SIMHOSTS_DIR/list --mpirun $MPIRUN --size 1M -- {} 2> $SIMHOSTS_DIR/said
         s=$?; grep -c 'h1' $SIMHOSTS_DIR/said; grep starting.*agent $SIMHOSTS_DIR/said; exit $s",
        show()
    );
    under_every_mpi(3, &script, |flavour, outcome| {
        let outcome = outcome.ok();
        assert_eq!(outcome.lines("buffer ").len(), 2, "{flavour}: {outcome:?}");
        let agents = outcome.stdout.lines().find(|l| l.contains("hostbuf-agent")).expect("what was started");
        assert!(agents.contains("h0") && !agents.contains("h1"), "{flavour}: {agents}");
    });
}

#[test]
fn surplus_agents_exit_if_their_hosts_have_no_ranks() {
    // The engine places ranks round-robin, and the launcher does not know on which hosts, so every
    // host gets an agent.
    if !can_simulate() {
        return;
    }
    for flavour in flavours().iter().filter(|f| f.starts_with("openmpi")) {
        let script = format!(
            "$HOSTBUF run -n 2 --host h0:2,h1:2,h2:2 --mpirun $MPIRUN --launcher-arg --map-by --launcher-arg node \
             --size 1M -- sh -c 'hostname; exec {}'",
            show()
        );
        let outcome = simulated(3, flavour, &script).ok();
        assert_eq!(outcome.lines("buffer 0x550000000000 1048576 ").len(), 2, "{flavour}: {outcome:?}");
        assert!(outcome.stdout.contains("h0") && outcome.stdout.contains("h1"), "{flavour}: {outcome:?}");
    }
}

#[test]
fn several_programs_form_one_job() {
    let script = format!(
        "$HOSTBUF run -n 1 --host h0:2,h1:2 --mpirun $MPIRUN --size 1M -- {0} : -n 3 -- sh -c '{0}; exit 0'",
        show()
    );
    under_every_mpi(2, &script, |flavour, outcome| {
        let outcome = outcome.ok();
        assert_eq!(outcome.lines("buffer 0x550000000000 1048576 ").len(), 4, "{flavour}: {outcome:?}");
    });
}

#[test]
fn rank_0_reads_standard_input() {
    // The program must be an MPI program: Hydra hangs if its standard input is a pipe and the
    // program does not use MPI, with or without hostbuf.
    let script = &format!(
        "{} echo 'one line' | $HOSTBUF run -n 2 --host h0:1,h1:1 --mpirun $MPIRUN --size 1M -- $out",
        mpi_fixture("reads")
    );
    under_every_mpi(2, script, |flavour, outcome| {
        assert_eq!(outcome.ok().lines("read: "), ["one line"], "{flavour}");
    });
}

#[test]
fn the_exit_status_of_the_ranks_is_returned() {
    let script =
        format!("$HOSTBUF run -n 2 --host h0:1,h1:1 --mpirun $MPIRUN --size 1M -- {} 7 < /dev/null", show());
    under_every_mpi(2, &script, |flavour, outcome| assert_eq!(outcome.status, 7, "{flavour}: {outcome:?}"));
}

#[test]
fn a_missing_program_gives_status_127() {
    let script =
        "$HOSTBUF run -n 2 --host h0:1,h1:1 --mpirun $MPIRUN --size 1M -- no-such-program; echo status $?";
    under_every_mpi(2, script, |flavour, outcome| {
        assert_eq!(outcome.lines("status "), ["127"], "{flavour}: {outcome:?}");
        let said = "hostbuf run: program \"no-such-program\" is not in PATH on h";
        assert!(outcome.stderr.starts_with(said), "{flavour}: {outcome:?}");
        assert_eq!(outcome.said().len(), 1, "{flavour}: {outcome:?}");
    });
    // With several programs only the ranks can report a missing one, and the engine adds its own
    // messages.
    let script = "$HOSTBUF run -n 1 --host h0:1,h1:1 --mpirun $MPIRUN --size 1M -- sleep 1000 : -n 1 -- no-such-program; \
                  echo status $?";
    under_every_mpi(2, script, |flavour, outcome| {
        assert_eq!(outcome.lines("status "), ["127"], "{flavour}: {outcome:?}");
        assert!(outcome.stderr.contains("no-such-program"), "{flavour}: {outcome:?}");
    });
}

#[test]
fn more_ranks_than_slots_get_a_message_with_the_remedy() {
    if !can_simulate() {
        return;
    }
    for flavour in flavours().iter().filter(|f| f.starts_with("openmpi")) {
        let option =
            if flavour == "openmpi5" { "--map-by --launcher-arg :OVERSUBSCRIBE" } else { "--oversubscribe" };
        let script = format!(
            "unset OMPI_MCA_rmaps_base_oversubscribe PRTE_MCA_rmaps_default_mapping_policy
             job() {{ $HOSTBUF run --mpirun $MPIRUN --size 1M \"$@\" -- true; echo status $?; }}
             job -n 5 --host h0:2,h1:2
             job -n 4 --host h0:2,h1:2
             job -n 5 --host h0:2,h1:2 --launcher-arg {option}"
        );
        let outcome = simulated(2, flavour, &script);
        let status = outcome.lines("status ");
        assert!(status.len() == 3 && status[0] != "0" && status[1..] == ["0", "0"], "{flavour}: {outcome:?}");
        // Open MPI 5 ends its messages with a NUL.
        let lines = outcome.stderr.lines().map(|line| line.trim_start_matches('\0'));
        let ours: Vec<&str> = lines.filter(|line| line.starts_with("hostbuf run: ")).collect();
        assert_eq!(ours.len(), 1, "{flavour}: {outcome:?}");
        let way_out = format!("--launcher-arg {option}");
        let words = ["-n 5 exceeds the 4 slots of the hosts", "--host h0:4,h1:4", &way_out];
        assert!(words.iter().all(|word| ours[0].contains(word)), "{flavour}: {ours:?}");
    }
}

#[test]
fn more_ranks_than_cores_get_a_message_with_the_remedy() {
    if !can_simulate() {
        return;
    }
    for flavour in flavours().iter().filter(|f| f.starts_with("openmpi")) {
        let remedy = "--launcher-arg --bind-to --launcher-arg none";
        let script = format!(
            "unset OMPI_MCA_rmaps_base_oversubscribe PRTE_MCA_rmaps_default_mapping_policy
             unset OMPI_MCA_hwloc_base_binding_policy PRTE_MCA_hwloc_default_binding_policy
             n=$(($(nproc) + 1))
             job() {{ $HOSTBUF run --mpirun $MPIRUN --size 1M \"$@\" -- true; echo status $?; }}
             job --host h0:$n {remedy}
             job -n $n --host h0:$n
             job --host h0:$n"
        );
        let outcome = simulated(1, flavour, &script);
        let status = outcome.lines("status ");
        let lines = outcome.stderr.lines().map(|line| line.trim_start_matches('\0'));
        let ours: Vec<&str> = lines.filter(|line| line.starts_with("hostbuf run: ")).collect();
        // The series 4.1 binds no rank if a host has too few cores.
        if flavour == "openmpi4" {
            assert!(status == ["0", "0", "0"] && ours.is_empty(), "{flavour}: {outcome:?}");
            continue;
        }
        assert!(
            status.len() == 3 && status[0] == "0" && status[1..].iter().all(|status| status != "0"),
            "{flavour}: {outcome:?}"
        );
        let ends = format!("If a host has fewer cores than ranks, add {remedy}");
        assert!(ours.len() == 2 && ours.iter().all(|line| line.ends_with(&ends)), "{flavour}: {ours:?}");
    }
}

/// The messages of an engine are paragraphs, which are hard to read in one line.
#[test]
fn the_lines_of_an_engine_that_fails_stand_above_the_error() {
    if !can_simulate() {
        return;
    }
    let separate = |stderr: &str| {
        let (ours, theirs): (Vec<String>, Vec<String>) =
            stderr.lines().map(str::to_owned).partition(|line| line.starts_with("hostbuf run: "));
        assert!(ours.len() == 1 && stderr.ends_with(&format!("{}\n", ours[0])), "{stderr}");
        assert!(theirs.len() > 1 && theirs.iter().all(|line| line.len() < 200), "{stderr}");
        (ours[0].clone(), theirs)
    };
    for flavour in flavours().iter().filter(|f| f.starts_with("openmpi")) {
        let allow = "--launcher-arg --allow-run-as-root";
        let script = format!(
            "[ $(id -u) = 0 ] || exit 90
             unset $(compgen -v | grep ALLOW_RUN_AS_ROOT)
             $HOSTBUF run -n 1 --mpirun $MPIRUN --size 1M {allow} -- echo allowed || exit 91
             $HOSTBUF run -n 1 --mpirun $MPIRUN --size 1M -- true"
        );
        let outcome = simulated(1, flavour, &script);
        if outcome.status == 90 {
            skip("an mpirun that refuses to run as root: this user is not root");
            break;
        }
        assert_eq!((outcome.status, outcome.stdout.as_str()), (86, "allowed\n"), "{flavour}: {outcome:?}");
        let (ours, theirs) = separate(&outcome.stderr);
        let why = format!(
            "could not start an agent on every host: it refuses to run as root. Run as another user, or add {allow}"
        );
        assert!(ours.ends_with(&why), "{flavour}: {ours}");
        assert!(
            theirs.iter().any(|line| line.ends_with("detected an attempt to run as root.")),
            "{theirs:?}"
        );
    }
    if flavours().iter().any(|flavour| flavour == "openmpi4") {
        let script = "$HOSTBUF run --host h0:1,nosuchhost:1 --mpirun $MPIRUN --size 1M -- true";
        let outcome = simulated(1, "openmpi4", script);
        let (ours, theirs) = separate(&outcome.stderr);
        assert!(
            ours.contains("could not start an agent on every host: ssh: ") && ours.contains("nosuchhost")
        );
        assert!(theirs.iter().any(|line| line.starts_with("ORTE was unable to")), "{theirs:?}");
    }
}

#[test]
fn spawned_processes_attach_without_being_counted() {
    if !can_simulate() {
        return;
    }
    for flavour in flavours() {
        let script = "out=target/fixtures/spawn-$MPI_FLAVOUR; $MPICC -O1 -o $out.$$ tests/fixtures/spawn.c && mv $out.$$ $out || exit 90
                      $HOSTBUF run -n 1 --host h0:4 --mpirun $MPIRUN --size 1M -- $out";
        let outcome = simulated(1, &flavour, script);
        if outcome.status == 90 {
            skip(&format!(
                "MPI_Comm_spawn under {flavour}: its mpicc does not build here: {}",
                outcome.stderr
            ));
            continue;
        }
        if flavour == "openmpi5" {
            // Its daemons pass no variables of the job to spawned processes, whatever -x says, so
            // nothing can be preloaded into them.
            assert_eq!(outcome.ok().lines("parent "), ["0x550000000000 1"]);
            skip("MPI_Comm_spawn under openmpi5: spawned processes inherit no variable of the job there");
            continue;
        }
        if flavour == "mpich4" && outcome.stderr.contains("Error in spawn call") {
            skip("MPI_Comm_spawn under mpich4: Debian's MPICH cannot spawn, with or without hostbuf");
            continue;
        }
        let outcome = outcome.ok();
        assert_eq!(outcome.lines("parent "), ["0x550000000000 3"], "{flavour}: {outcome:?}");
        assert_eq!(outcome.lines("child "), ["0x550000000000"; 2], "{flavour}: {outcome:?}");
    }
}
