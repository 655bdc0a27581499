//! Sections and placements of jobs on several hosts. Their pages are checked in machines with
//! several nodes (tests/numa).

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use hostbuf_tests::{CommandOutput, Scratch, can_simulate, flavours, local, root, simulated, skip};

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
    version_4().map(|flavour| simulated(2, &flavour, script)).collect()
}

/// Returns the MPIs of version 4.
fn version_4() -> impl Iterator<Item = String> {
    flavours().into_iter().filter(|flavour| flavour.ends_with('4'))
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
        assert!(lines[0].contains("cannot place memory on node 63: h"), "{}", lines[0]);
    }
}

/// Makes a folder that `mount` can put over `/sys/devices/system/node`: node 0 is node 1 there.
fn renumbered_node(scratch: &Scratch) -> std::io::Result<()> {
    let node = scratch.0.join("node1");
    fs::create_dir(&node)?;
    for list in ["online", "possible", "has_memory", "has_cpu", "has_normal_memory"] {
        fs::write(scratch.0.join(list), "1\n")?;
    }
    for file in ["cpulist", "distance", "meminfo"] {
        let text = fs::read_to_string(Path::new("/sys/devices/system/node/node0").join(file))?;
        fs::write(node.join(file), text.replace("Node 0", "Node 1"))?;
    }
    Ok(())
}

#[test]
fn a_node_that_one_of_the_hosts_does_not_have_gives_one_line() {
    if !can_simulate() || !can_place() {
        return;
    }
    let scratch = Scratch::new("renumbered-node");
    renumbered_node(&scratch).expect("files of a node");
    let agent = scratch.path("agent");
    // It becomes the agent $AGENT, on h1 in a mount namespace with the other node.
    let becomes_agent = format!(
        "#!/bin/bash\nset -e\n\
         if [[ $(hostname) == h1 && ! $RENUMBERED ]]; then RENUMBERED=yes exec unshare -m \"$0\" \"$@\"; fi\n\
         if [[ $RENUMBERED ]]; then mount --bind '{}' /sys/devices/system/node; fi\n\
         exec $AGENT \"$@\"\n",
        scratch.0.display()
    );
    for flavour in version_4() {
        let below = root().join(format!("target/libexec/hostbuf/hostbuf-agent-{flavour}"));
        let text = becomes_agent.replace("$AGENT", &format!("'{}'", below.display()));
        fs::write(&agent, text).expect("a new file");
        fs::set_permissions(&agent, Permissions::from_mode(0o755)).expect("our own file");
        let script = format!(
            "$HOSTBUF run -n 4 --host h0:2,h1:2 --mpirun $MPIRUN --agent '{agent}' --size 4M --numa 0 -- echo ran"
        );
        let outcome = simulated(2, &flavour, &script);
        assert_eq!((outcome.status, outcome.stdout.as_str()), (82, ""), "{outcome:?}");
        let lines: Vec<&str> = outcome.stderr.lines().filter(|line| line.starts_with("hostbuf")).collect();
        assert_eq!(lines.len(), 1, "{outcome:?}");
        let well = lines[0].contains("memory on node 0") && lines[0].contains("h1 has only node 1");
        assert!(well, "{}", lines[0]);
    }
}
