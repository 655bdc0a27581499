//! The nodes of the pages of buffers, and placements that cannot be had. The checks of the pages
//! are in tests/programs/src/bin/numa_placement; the errors are those of whole jobs.

use hostbuf_tests::{CommandOutput, hostbuf};

use crate::machine::{GuestCheck, all_ok, command_line};

/// The checks of all pages.
const PAGES: [&str; 8] = [
    "small-pages",
    "small-pages-of-huge-files",
    "transparent-pages",
    "transparent-pages-of-huge-files",
    "pool-pages",
    "sections",
    "automatic-pages",
    "spilling",
];

/// The checks of nodes whose memory is in use.
const FULL_NODES: [&str; 2] = ["collapse-refused", "node-filled-meanwhile"];

/// The checks of limits other than the free memory of a node.
const LIMITS: [&str; 4] = ["lost-pool", "cgroup-limits", "oom-group", "oom-group-of-one-node"];

/// Returns the command line of the program with these checks.
fn placement(checks: &[&str]) -> String {
    command_line("numa_placement", &checks.iter().map(ToString::to_string).collect::<Vec<_>>())
}

/// Returns the check of all pages, for a machine with eight huge pages on each node.
pub fn pages_check() -> GuestCheck {
    GuestCheck { name: "pages", command: placement(&PAGES), check: |output| all_ok(output, &PAGES) }
}

/// Returns the check of nodes whose memory is in use.
pub fn full_nodes_check() -> GuestCheck {
    GuestCheck {
        name: "full-nodes",
        command: placement(&FULL_NODES),
        check: |output| all_ok(output, &FULL_NODES),
    }
}

/// Returns the check of limits, for a machine with eight huge pages on each node.
pub fn limits_check() -> GuestCheck {
    GuestCheck { name: "limits", command: placement(&LIMITS), check: |output| all_ok(output, &LIMITS) }
}

/// Returns the check that automatic NUMA balancing does not move placed pages, for a kernel that
/// moves others.
pub fn balancing_check() -> GuestCheck {
    GuestCheck {
        name: "balancing",
        command: placement(&["balancing"]),
        check: |output| all_ok(output, &["balancing"]),
    }
}

/// Returns the check that page cache is freed for placed pages, for a machine with a drive.
pub fn page_cache_check() -> GuestCheck {
    GuestCheck {
        name: "page-cache",
        command: placement(&["page-cache"]),
        check: |output| all_ok(output, &["page-cache"]),
    }
}

/// Returns the checks of jobs whose placement this machine cannot provide, and of one that it can.
/// Its nodes are 0 and 1, each with eight huge pages. Each job must leave nothing on the host.
pub fn jobs() -> Vec<GuestCheck> {
    let job = |limits: &str, options: &str, program: &str| {
        let limits = if limits.is_empty() {
            String::new()
        } else {
            command_line("numa_limits", &[limits.into(), "--".into()])
        };
        let watched = command_line("leaves_nothing", &[limits]);
        format!("{watched} '{}' run --launcher local -n 2 {options} -- {program}", hostbuf().display())
    };
    vec![
        GuestCheck {
            name: "absent-node",
            command: job("", "--size 8M --numa 5", "echo ran"),
            check: |output| {
                refused(
                    output,
                    82,
                    &["memory on node 5", "numa-vm has only nodes 0 and 1", "hostbuf topology"],
                )
            },
        },
        GuestCheck {
            name: "full-node",
            command: job("full 1 40", "--size 64M --numa 1", "echo ran"),
            check: |output| {
                refused(
                    output,
                    83,
                    &["64 MiB requested", "the free memory of node 1", "free: node 0 ", "request at most "],
                )
            },
        },
        GuestCheck {
            name: "full-node-of-a-section",
            command: job(
                "full 1 40",
                "--section name=a,size=8M,numa=0 --section name=b,size=128M,numa=interleave",
                "echo ran",
            ),
            check: |output| {
                refused(
                    output,
                    83,
                    &["128 MiB requested", "the free memory of node 1 for section \"b\"", "beside 8 MiB"],
                )
            },
        },
        GuestCheck {
            name: "short-pool",
            command: job("", "--size 20M --pages 2m --numa interleave:0,1/1,9", "echo ran"),
            check: |output| {
                refused(
                    output,
                    83,
                    &[
                        "the reserved pool of pages of 2 MiB of node 1 ",
                        "20 MiB requested, 18 MiB",
                        "node1/hugepages",
                    ],
                )
            },
        },
        GuestCheck {
            name: "cpuset",
            command: job("nodes 0", "--size 8M --numa 1", "echo ran"),
            check: |output| refused(output, 82, &["cpuset", "allows only node 0"]),
        },
        GuestCheck {
            name: "placed-pages-first",
            command: job(
                "",
                "--buffer name=any,size=16M,pages=2m --buffer name=placed,size=16M,pages=2m,numa=0",
                "echo ran",
            ),
            check: |output| passed(output, &["ran", "ran"]),
        },
        GuestCheck {
            name: "interleaving-in-a-cpuset",
            command: job("nodes 0", "--size 8M --numa interleave", "echo ran"),
            check: |output| passed(output, &["ran", "ran"]),
        },
        GuestCheck {
            name: "stat",
            command: job(
                "",
                "--quiet --section name=grid,size=8M,numa=1 --section name=halo,size=4M,numa=interleave",
                &format!("bash -c '[[ $HOSTBUF_LOCAL_RANK == 1 ]] || \"{}\" stat'", hostbuf().display()),
            ),
            check: has_the_sections,
        },
    ]
}

/// The cells of the table of sections, without the addresses.
const SECTIONS: [[&str; 7]; 3] = [
    ["grid", "default", "8 MiB", "1", "1", "8 MiB", "8 MiB"],
    ["halo", "default", "4 MiB", "interleave", "0", "2 MiB", "2 MiB"],
    ["", "", "", "", "1", "2 MiB", "2 MiB"],
];

/// Requires a report of `hostbuf stat` with these sections and no others.
fn has_the_sections(output: &CommandOutput) -> Result<(), String> {
    let table = output.stdout.lines().skip_while(|line| !line.trim_start().starts_with("SECTION"));
    let mut rows = table.take(1 + SECTIONS.len() + 1);
    let head = rows.next().ok_or_else(|| output.stdout.clone())?;
    let columns = ["SECTION", "OF", "SIZE", "NUMA", "NODE", "REQUESTED", "OBTAINED"];
    let columns = columns.map(|name| head.find(name).unwrap_or(head.len()));
    let cells = |line: &str| -> Vec<String> {
        let cell = |at: &usize| line.get(*at..).unwrap_or_default().split("  ").next().unwrap_or_default();
        columns.iter().map(|at| cell(at).trim().to_owned()).collect()
    };
    let found: Vec<Vec<String>> = rows.filter(|line| !line.contains("ranks: ")).map(cells).collect();
    if found == SECTIONS && output.status == 0 {
        Ok(())
    } else {
        Err(format!("{found:?} in {}", output.stdout))
    }
}

/// Requires a job that has not run, with one line that contains these words.
fn refused(output: &CommandOutput, status: i32, words: &[&str]) -> Result<(), String> {
    let lines: Vec<&str> = output.stdout.lines().filter(|line| !line.is_empty()).collect();
    let well = lines.len() == 1 && words.iter().all(|word| lines[0].contains(word));
    if well && output.status == status {
        Ok(())
    } else {
        Err(format!("status {}, {lines:#?}", output.status))
    }
}

/// Requires a job that has printed these lines.
fn passed(output: &CommandOutput, wanted: &[&str]) -> Result<(), String> {
    let lines: Vec<&str> = output.stdout.lines().filter(|line| !line.is_empty()).collect();
    if lines == wanted && output.status == 0 {
        Ok(())
    } else {
        Err(format!("status {}, {lines:#?}", output.status))
    }
}
