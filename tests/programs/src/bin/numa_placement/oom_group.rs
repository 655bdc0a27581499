//! A memory cgroup whose processes the OOM killer ends together.

use std::os::unix::process::CommandExt;
use std::process::{Child, Command};

use hostbuf_programs::checks::{Outcome, expect, text};
use hostbuf_programs::numa::bound_memory::killable;
use hostbuf_programs::numa::sys_node::with_memory;

use crate::faults;
use crate::own_group::OwnGroup;

/// Checks that a node that is filled meanwhile costs no other process of a cgroup with
/// `memory.oom.group`.
pub fn spares_the_group() -> Outcome {
    let group = OwnGroup::join("memory")?;
    fill_a_node_in(group)
}

/// Checks the same in a cpuset with that node alone.
pub fn spares_the_group_of_one_node() -> Outcome {
    let group = OwnGroup::join("memory cpuset")?;
    group.set("cpuset.mems", &with_memory()?.last().ok_or("no node")?.to_string())?;
    fill_a_node_in(group)
}

fn fill_a_node_in(group: OwnGroup) -> Outcome {
    group.set("memory.oom.group", "1")?;
    // The process that fills the node is one that the kernel spares in any case.
    let mut other = bystander()?;
    let outcome = faults::node_filled_meanwhile();
    let survived = other.try_wait().map_err(text)?.is_none();
    other.kill().map_err(text)?;
    other.wait().map_err(text)?;
    let kills = group.number("memory.events", "oom_kill ")?;
    drop(group);
    let outcome = outcome?;
    expect(survived && kills == 0, format!("{kills} processes of the group were killed: {outcome}"))?;
    Ok(outcome)
}

/// Starts a process that does nothing, and that the OOM killer may end.
#[allow(unsafe_code, reason = "runs a function between fork and exec")]
fn bystander() -> Result<Child, String> {
    let mut command = Command::new("sleep");
    command.arg("1000");
    // SAFETY: this process has one thread, so the child may call anything.
    unsafe { command.pre_exec(|| killable().map_err(std::io::Error::other)) };
    command.spawn().map_err(text)
}
