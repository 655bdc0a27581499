//! The copies that frozen sections with `numa=copies` get on each node. The checks of the copies
//! are in tests/programs/src/bin/node_copies.

use hostbuf_tests::{CommandOutput, hostbuf, program, root, skip};

use crate::machine::{GuestCheck, all_ok, command_line};

/// The checks on every machine, in one job with four bound ranks.
const CHECKS: [&str; 2] = ["pages", "wrong-checksum"];
/// Further checks on the machine with two nodes, in one job with four bound ranks.
const FURTHER_CHECKS: [&str; 4] = ["device-writes", "full-node", "short-pool", "forked-writer"];

/// The options of a buffer of the launcher with the sections that the program expects.
const SECTIONS: &str =
    "--numa copies --pages thp --size 8M --section name=grid,size=2M --section name=halo,size=2M,numa=0";

/// Returns the command line of a job of four ranks that run the program with these checks. It must
/// leave nothing on the host.
fn job(options: &str, checks: &[&str]) -> String {
    let watched = command_line("leaves_nothing", &[]);
    let (hostbuf, program) = (hostbuf(), program("node_copies"));
    let (hostbuf, program) = (hostbuf.display(), program.display());
    let checks = checks.join(" ");
    format!(
        "export HOSTBUF='{hostbuf}'; {watched} '{hostbuf}' run -q --launcher local -n 4 {options} -- '{program}' {checks}"
    )
}

/// Returns the check of any machine with at least eight huge pages on each node.
pub fn check() -> GuestCheck {
    GuestCheck {
        name: "copies",
        command: job("--bind node --size 1M", &CHECKS),
        check: |output| all_ok(output, &CHECKS),
    }
}

/// Returns the checks of the machine with two nodes.
pub fn two_node_checks() -> Vec<GuestCheck> {
    let limits = command_line("numa_limits", &["full".into(), "1".into(), "40".into(), "--".into()]);
    let full = command_line("leaves_nothing", &[limits]);
    vec![
        check(),
        GuestCheck {
            name: "copies-that-fail",
            command: job("--bind node --size 1M", &FURTHER_CHECKS),
            check: |output| all_ok(output, &FURTHER_CHECKS),
        },
        GuestCheck {
            name: "copies-of-a-launched-buffer",
            command: job(&format!("--bind node {SECTIONS}"), &["launched"]),
            check: |output| all_ok(output, &["launched"]),
        },
        GuestCheck {
            name: "copies-of-unbound-ranks",
            command: job("--size 1M", &["unbound"]),
            check: |output| {
                let remote = "rank 0 from node 0, rank 1 from node 0, rank 2 from node 0, rank 3 from node 0";
                contains(output, 0, &[&format!("ok unbound {remote}\n")])
            },
        },
        GuestCheck {
            name: "copies-of-a-killed-rank",
            command: job("--bind node --size 1M", &["killed"]),
            check: |output| contains(output, 137, &["survivor: "]),
        },
        GuestCheck {
            name: "copies-in-the-report",
            command: job(&format!("--bind node {SECTIONS}"), &["stat"]),
            check: is_in_the_report,
        },
        GuestCheck {
            name: "copies-of-the-example",
            command: format!(
                "'{}' run -q --launcher local -n 2 --bind node --size 8M --numa copies -- '{}'",
                hostbuf().display(),
                program("numa_copies").display()
            ),
            check: |output| {
                let of_each = ["from 2 nodes: 0, 1", "reads from node 0 (all", "reads from node 1 (all"];
                contains(output, 0, &of_each)
            },
        },
        GuestCheck {
            name: "copies-of-spanning-ranks",
            command: job("--size 1M", &["spanning"]),
            check: |output| contains(output, 0, &["ok spanning rank 1 from node 1, rank 3 from node 0\n"]),
        },
        GuestCheck {
            name: "copies-in-the-doctor",
            command: format!("'{}' doctor --size 8M --numa copies", hostbuf().display()),
            check: |output| contains(output, 0, &["node 0 8 MiB, room for copies on node 1"]),
        },
        GuestCheck {
            name: "copies-without-a-freeze",
            command: format!(
                "{} '{}' run -q --launcher local -n 2 --size 8M --numa copies -- echo passed",
                command_line("leaves_nothing", &[]),
                hostbuf().display()
            ),
            check: |output| contains(output, 0, &["passed\npassed\n"]),
        },
        GuestCheck {
            name: "copies-of-a-full-node",
            command: format!(
                "{full} '{}' run --launcher local -n 2 --size 64M --numa copies -- echo ran",
                hostbuf().display()
            ),
            check: |output| {
                contains(
                    output,
                    83,
                    &[
                        "64 MiB requested",
                        "the free memory of node 1 for the placement copies",
                        "request at most ",
                    ],
                )
            },
        },
    ]
}

/// Returns the check of puts into copies, for a machine with two nodes, an RDMA device, and a
/// kernel that registers sealed memory; `None` if its program was not built.
pub fn rdma_check() -> Option<GuestCheck> {
    let program = root().join("target/rdma/release/rdma_copies");
    if !program.exists() {
        skip("RDMA into copies: its program is not built (scripts/test builds it)");
        return None;
    }
    let watched = command_line("leaves_nothing", &[]);
    let (hostbuf, program) = (hostbuf().display().to_string(), program.display());
    Some(GuestCheck {
        name: "rdma-copies",
        command: format!(
            "{watched} '{hostbuf}' run -q --launcher local -n 2 --bind node --size 1M -- '{program}'"
        ),
        check: |output| all_ok(output, &["puts-into-copies"]),
    })
}

/// Requires an output with these words and without a line of `leaves_nothing`.
fn contains(output: &CommandOutput, status: i32, words: &[&str]) -> Result<(), String> {
    let missing = words.iter().find(|word| !output.stdout.contains(*word));
    let left = output.stdout.lines().any(|line| line.starts_with("left: ") || line == "ran");
    if output.status == status && missing.is_none() && !left {
        Ok(())
    } else {
        Err(format!("status {}, {missing:?} is missing: {}", output.status, output.stdout))
    }
}

/// Requires a report with the copies of the section `grid`, and without those of `halo`.
fn is_in_the_report(output: &CommandOutput) -> Result<(), String> {
    let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let rows: Vec<Vec<String>> = output.stdout.lines().map(words).collect();
    let ends = |at: usize, cells: &[&str]| {
        rows.get(at)
            .is_some_and(|row| row.ends_with(&cells.iter().map(ToString::to_string).collect::<Vec<_>>()))
    };
    let find = |name: &str| rows.iter().position(|row| row.first().is_some_and(|first| first == name));
    let (grid, halo) = (find("grid").unwrap_or(rows.len()), find("halo").unwrap_or(rows.len()));
    let well = ends(grid, &["2", "MiB", "copies", "0", "2", "MiB", "2", "MiB"])
        && ends(grid + 1, &["1", "2", "MiB", "2", "MiB"])
        && ends(halo, &["2", "MiB", "0", "0", "2", "MiB", "2", "MiB"]);
    if well && output.status == 0 { Ok(()) } else { Err(output.stdout.clone()) }
}
