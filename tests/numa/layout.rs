//! The nodes, the memory and the devices of each layout. The checks are in
//! tests/programs/src/bin/numa_layout.

use crate::machine::{GuestCheck, NumaMachine, all_ok, command_line};

pub fn check(machine: &NumaMachine) -> GuestCheck {
    let pages: Vec<String> = machine.huge_pages().iter().map(ToString::to_string).collect();
    GuestCheck {
        name: "layout",
        command: command_line("numa_layout", &pages),
        check: |output| {
            all_ok(output, &["nodes", "cpus", "memory", "distances", "bandwidth", "pools", "devices"])
        },
    }
}
