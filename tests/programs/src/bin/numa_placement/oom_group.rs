//! A memory cgroup whose processes the OOM killer ends together.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use hostbuf_programs::checks::{Outcome, expect, text};
use hostbuf_programs::numa::bound_memory::killable;

use crate::faults;

/// The cgroup hierarchy (version 2), which `scripts/numa-vm` mounts.
const ROOT: &str = "/sys/fs/cgroup";

/// Checks that a node that is filled meanwhile costs no other process of a cgroup with
/// `memory.oom.group`.
pub fn spares_the_group() -> Outcome {
    let group = OomGroup::join()?;
    // The process that fills the node is one that the kernel spares in any case.
    let mut other = bystander()?;
    let outcome = faults::node_filled_meanwhile();
    let survived = other.try_wait().map_err(text)?.is_none();
    other.kill().map_err(text)?;
    other.wait().map_err(text)?;
    let kills = group.kills()?;
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

/// A cgroup with `memory.oom.group`, which this process leaves when this is dropped.
struct OomGroup {
    path: PathBuf,
}

impl OomGroup {
    fn join() -> Result<OomGroup, String> {
        write(&Path::new(ROOT).join("cgroup.subtree_control"), "+memory")?;
        let path = Path::new(ROOT).join(format!("oom-group-{}", std::process::id()));
        fs::create_dir(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        // From here on a failure removes the cgroup.
        let group = OomGroup { path };
        write(&group.path.join("memory.oom.group"), "1")?;
        write(&group.path.join("cgroup.procs"), "0")?;
        Ok(group)
    }

    /// Returns the number of processes that the OOM killer has ended.
    fn kills(&self) -> Result<u64, String> {
        let events = fs::read_to_string(self.path.join("memory.events")).map_err(text)?;
        let kills = events.lines().find_map(|line| line.strip_prefix("oom_kill ")?.parse().ok());
        kills.ok_or_else(|| format!("memory.events: {events}"))
    }
}

impl Drop for OomGroup {
    fn drop(&mut self) {
        let left = write(&Path::new(ROOT).join("cgroup.procs"), "0");
        if let Err(error) = left.and_then(|()| fs::remove_dir(&self.path).map_err(text)) {
            eprintln!("{}: {error}", self.path.display());
        }
    }
}

fn write(path: &Path, value: &str) -> Result<(), String> {
    fs::write(path, value).map_err(|error| format!("{value} to {}: {error}", path.display()))
}
