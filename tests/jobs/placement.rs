//! Sections and placements of jobs on several hosts. Their pages are checked in machines with
//! several nodes (tests/numa).

use hostbuf_tests::{CommandOutput, can_simulate, flavours, local, simulated, skip};

/// Returns whether memory can be placed here: most containers forbid the system calls.
fn can_place() -> bool {
    let outcome = local(1, "64K", &["--numa", "0"], &["true"]);
    if outcome.stderr.contains("SYS_NICE") {
        skip(&format!("placements: {}", outcome.stderr.trim()));
        return false;
    }
    outcome.ok();
    true
}

/// Runs a script on two simulated hosts with each MPI of version 4.
fn on_two_hosts(script: &str) -> Vec<CommandOutput> {
    if !can_simulate() || !can_place() {
        return Vec::new();
    }
    flavours().iter().filter(|f| f.ends_with('4')).map(|flavour| simulated(2, flavour, script)).collect()
}

/// Returns the addresses of a section in the tables of `hostbuf stat`.
fn addresses(outcome: &CommandOutput, section: &str) -> Vec<u64> {
    let rows = outcome.stdout.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let own = rows.filter(|cells| cells.first() == Some(&section));
    let parse = |cells: Vec<&str>| u64::from_str_radix(cells[2].trim_start_matches("0x"), 16);
    own.map(|cells| parse(cells).expect("an address")).collect()
}

/// Requires that two hosts have listed both sections, at the same addresses.
fn are_equal(outcome: &CommandOutput) {
    let (grid, halo) = (addresses(outcome, "grid"), addresses(outcome, "halo"));
    assert!(grid.len() >= 2 && grid.len() == halo.len(), "{outcome:?}");
    assert!(grid.iter().all(|at| *at == grid[0]), "{grid:x?}");
    assert!(halo.iter().all(|at| *at == grid[0] + (6 << 20)), "{halo:x?}");
    let obtained = outcome.stdout.lines().filter(|line| line.contains("grid"));
    assert!(obtained.into_iter().all(|line| line.matches("6 MiB").count() == 3), "{}", outcome.stdout);
}

const SECTIONS: &str = "--section name=grid,size=5M,numa=0 --section name=halo,size=1M";

#[test]
fn sections_begin_at_the_same_address_on_every_host() {
    let script =
        format!("$HOSTBUF run -q -n 2 --host h0:1,h1:1 --mpirun $MPIRUN {SECTIONS} -- $HOSTBUF stat");
    on_two_hosts(&script).into_iter().for_each(|outcome| are_equal(&outcome.ok()));
}

#[test]
fn ranks_of_mpirun_get_sections() {
    let script = format!("$MPIRUN $MPIRUN_FLAGS -np 2 $HOSTBUF exec {SECTIONS} -- $HOSTBUF stat");
    on_two_hosts(&script).into_iter().for_each(|outcome| are_equal(&outcome.ok()));
}

#[test]
fn a_node_that_the_hosts_do_not_have_gives_one_line() {
    let script = "$HOSTBUF run -n 4 --host h0:2,h1:2 --mpirun $MPIRUN --size 4M --numa 63 -- echo ran";
    for outcome in on_two_hosts(script) {
        assert_eq!((outcome.status, outcome.stdout.as_str()), (82, ""), "{outcome:?}");
        let lines: Vec<&str> = outcome.stderr.lines().filter(|line| line.starts_with("hostbuf")).collect();
        assert_eq!(lines.len(), 1, "{outcome:?}");
        assert!(lines[0].contains("memory on node 63 is not supported here: h"), "{}", lines[0]);
    }
}
