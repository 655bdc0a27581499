//! The topology of each machine, compared with what hwloc's lstopo reads there.

use hostbuf_programs::lstopo::LSTOPO;
use hostbuf_tests::{CommandOutput, have};

use crate::machine::{GuestCheck, command_line};

/// Returns the check, or `None` without lstopo, which is recorded as skipped: the machine has the
/// programs of this host.
pub fn check() -> Option<GuestCheck> {
    let command = || command_line("topology_like_lstopo", &[]);
    have(LSTOPO).then(|| GuestCheck { name: "topology", command: command(), check: is_equal })
}

fn is_equal(output: &CommandOutput) -> Result<(), String> {
    if output.status == 0 { Ok(()) } else { Err(output.stdout.clone()) }
}
