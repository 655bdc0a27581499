//! A cgroup whose processes get memory of some nodes only.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The cgroup hierarchy (version 2), which `scripts/numa-vm` mounts.
const ROOT: &str = "/sys/fs/cgroup";

/// A cgroup with a list of nodes, which is removed when this is dropped.
pub struct CpusetCgroup {
    path: PathBuf,
}

impl CpusetCgroup {
    /// Creates a cgroup whose processes get memory of the nodes `nodes` ("0,2-3").
    pub fn new(nodes: &str) -> Result<CpusetCgroup, String> {
        write(&Path::new(ROOT).join("cgroup.subtree_control"), "+cpuset")?;
        let path = Path::new(ROOT).join(format!("nodes-{}", std::process::id()));
        fs::create_dir(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        // From here on a failure removes the cgroup.
        let group = CpusetCgroup { path };
        write(&group.path.join("cpuset.mems"), nodes)?;
        Ok(group)
    }

    /// Returns the file to which a process writes "0" to join the group.
    pub fn processes(&self) -> PathBuf {
        self.path.join("cgroup.procs")
    }
}

impl Drop for CpusetCgroup {
    fn drop(&mut self) {
        // It fails while a process is in the group. The machine ends soon.
        if let Err(error) = fs::remove_dir(&self.path) {
            eprintln!("{}: {error}", self.path.display());
        }
    }
}

fn write(path: &Path, value: &str) -> Result<(), String> {
    let failed = |error: io::Error| format!("{value} to {}: {error}", path.display());
    fs::write(path, value).map_err(failed)
}
