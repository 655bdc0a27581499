//! Checks of a node without free memory, and of a cpuset without a node.

use std::path::PathBuf;
use std::process::{Command, ExitStatus};

use hostbuf_programs::checks::{Outcome, expect, text};
use hostbuf_programs::numa::bound_memory::{BoundMemory, FullNode};
use hostbuf_programs::numa::sys_node::{available, with_memory};

/// MiB that stay available on a full node.
const LEAVE: usize = 16;
/// MiB that a full node does not have, even if the kernel uses its reserve.
const TOO_MUCH: usize = 160;

/// Allocates memory on a node.
pub fn take(node: u32, mib: usize) -> Result<(), String> {
    BoundMemory::private(mib << 20)?.take(0, mib << 20, node)
}

/// Runs `take` under the limits. Returns its status and its error.
fn take_under(limits: &[&str], node: u32, mib: usize) -> Result<(ExitStatus, String), String> {
    let own: PathBuf = std::env::current_exe().map_err(text)?;
    let mut command = Command::new(own.with_file_name("numa_limits"));
    command.args(limits).arg("--").arg(&own).args(["take", &node.to_string(), &mib.to_string()]);
    let output = command.output().map_err(text)?;
    Ok((output.status, String::from_utf8_lossy(&output.stderr).trim_end().to_owned()))
}

/// Checks that a node has as much memory as was left, and that the kernel kills the program that
/// takes more, not the one that fills the node.
pub fn full_node() -> Outcome {
    let node = *with_memory()?.last().ok_or("no node")?;
    let free = || available(node).map(|bytes| bytes >> 20);
    let before = free()?;
    let full = FullNode::new(node, LEAVE << 20)?;
    let during = free()?;
    expect(during <= LEAVE && before > TOO_MUCH, format!("{before} MiB free, then {during}"))?;
    drop(full);
    let after = free()?;
    expect(after > before / 2, format!("{before} MiB free, at the end {after}"))?;
    let limits = ["full", &node.to_string(), &LEAVE.to_string()];
    let (status, why) = take_under(&limits, node, 4)?;
    expect(status.success(), format!("4 MiB on a full node: {status}, {why}"))?;
    let (status, why) = take_under(&limits, node, TOO_MUCH)?;
    expect(
        status.code() == Some(128 + libc::SIGKILL),
        format!("{TOO_MUCH} MiB on a full node: {status}, {why}"),
    )?;
    Ok(format!("{before} MiB free, then {during}, at the end {after}"))
}

/// Checks that a process in a cpuset gets memory of the nodes of the set, and of no other one.
pub fn cpuset() -> Outcome {
    let nodes = with_memory()?;
    let (first, last) = (nodes[0], *nodes.last().ok_or("no node")?);
    let limits = ["nodes", &first.to_string()];
    let (status, why) = take_under(&limits, first, 1)?;
    expect(status.success(), format!("node {first}: {status}, {why}"))?;
    let (status, why) = take_under(&limits, last, 1)?;
    expect(status.code() == Some(1) && why.contains("EINVAL"), format!("node {last}: {status}, {why}"))?;
    Ok(why)
}
