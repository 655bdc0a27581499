//! The functions by which other programs check where pages are. The checks are in
//! tests/programs/src/bin/numa_memory.

use crate::machine::{GuestCheck, all_ok, command_line};

const CHECKS: [&str; 9] = [
    "private-pages",
    "file-pages",
    "holes",
    "allocated-pages",
    "collapsed-pages",
    "pool-pages",
    "other-process",
    "full-node",
    "cpuset",
];

/// Returns the check, for a machine with two huge pages on each node.
pub fn check() -> GuestCheck {
    GuestCheck {
        name: "memory",
        command: command_line("numa_memory", &[]),
        check: |output| all_ok(output, &CHECKS),
    }
}
