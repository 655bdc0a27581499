//! A cgroup of this process.

use std::fs;
use std::path::{Path, PathBuf};

use hostbuf_programs::checks::text;

/// The cgroup hierarchy (version 2), which `scripts/numa-vm` mounts.
const ROOT: &str = "/sys/fs/cgroup";

/// A cgroup that this process leaves when this is dropped.
pub struct OwnGroup {
    path: PathBuf,
}

impl OwnGroup {
    /// Creates a cgroup with the files of `controllers` ("memory cpuset"), and lets this process
    /// join it.
    pub fn join(controllers: &str) -> Result<OwnGroup, String> {
        for controller in controllers.split(' ') {
            write(&Path::new(ROOT).join("cgroup.subtree_control"), &format!("+{controller}"))?;
        }
        let path = Path::new(ROOT).join(format!("{}-{}", controllers.replace(' ', "-"), std::process::id()));
        fs::create_dir(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        // From here on a failure removes the cgroup.
        let group = OwnGroup { path };
        group.set("cgroup.procs", "0")?;
        Ok(group)
    }

    /// Writes `value` to a file of the group.
    pub fn set(&self, file: &str, value: &str) -> Result<(), String> {
        write(&self.path.join(file), value)
    }

    /// Returns the number behind `name` in a file of the group, or in a file of one number.
    pub fn number(&self, file: &str, name: &str) -> Result<u64, String> {
        let text = fs::read_to_string(self.path.join(file)).map_err(text)?;
        let number = text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
        number.ok_or_else(|| format!("{file}: {text}"))
    }
}

impl Drop for OwnGroup {
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
