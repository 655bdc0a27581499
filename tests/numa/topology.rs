//! The topology of each machine, compared with what hwloc's lstopo reads there.

use hostbuf_tests::{CommandOutput, have, skip};

use crate::machine::{GuestCheck, command_line};

/// Returns the check, which passes without lstopo: the machine has the programs of this host.
pub fn check() -> GuestCheck {
    let command = if have("lstopo-no-graphics") {
        command_line("topology_like_lstopo", &[])
    } else {
        skip("the topology of machines with NUMA nodes: lstopo is not installed");
        "true".to_owned()
    };
    GuestCheck { name: "topology", command, check: is_equal }
}

fn is_equal(output: &CommandOutput) -> Result<(), String> {
    if output.status == 0 { Ok(()) } else { Err(output.stdout.clone()) }
}
