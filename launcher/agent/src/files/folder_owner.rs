//! The agent that owns a folder of links, as the folder itself states it.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use hostbuf_os::process;

/// The first word of the text.
const MARK: &str = "hostbuf";

/// The agent that owns a folder. The target of a symbolic link in the folder contains it as text,
/// since such a link is made whole or not at all, and its target needs no file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FolderOwner {
    /// The random number of the job.
    pub(super) job: u128,
    /// The name of the host.
    pub(super) host: String,
    /// The number that the kernel has chosen when the host was booted.
    boot: String,
    /// The inode of the PID namespace of the agent.
    namespace: u64,
    /// The process ID of the agent.
    pub(super) pid: i32,
    /// The time at which the agent has started, in clock ticks after boot.
    start: u64,
}

/// The state of the agent that owns a folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OwnerState {
    /// The agent runs.
    Running,
    /// The agent has ended, so nothing uses its links any more.
    Ended,
    /// The agent is on another host or in another PID namespace, where this process cannot see it.
    OutOfSight,
}

impl FolderOwner {
    /// Returns this process as the owner of a folder for a job.
    pub(super) fn this_process(job: u128) -> FolderOwner {
        let pid = std::process::id() as i32;
        FolderOwner {
            job,
            host: process::host_name(),
            boot: boot(),
            namespace: namespace(),
            pid,
            start: process::start_time(pid).unwrap_or(0),
        }
    }

    /// Returns an owner on this host that has ended.
    #[cfg(test)]
    pub(super) fn ended(job: u128) -> FolderOwner {
        let owner = FolderOwner::this_process(job);
        FolderOwner { start: owner.start + 1, ..owner }
    }

    /// Returns the text that [`parse`](FolderOwner::parse) reads.
    pub(super) fn text(&self) -> String {
        let FolderOwner { job, host, boot, namespace, pid, start } = self;
        format!("{MARK} {job:032x} {host} {boot} {namespace} {pid} {start}")
    }

    /// Reads the text of an owner. Returns `None` for any other text.
    pub(super) fn parse(text: &str) -> Option<FolderOwner> {
        let words: Vec<&str> = text.split(' ').collect();
        let [MARK, job, host, boot, namespace, pid, start] = words[..] else { return None };
        Some(FolderOwner {
            job: u128::from_str_radix(job, 16).ok()?,
            host: host.to_owned(),
            boot: boot.to_owned(),
            namespace: namespace.parse().ok()?,
            pid: pid.parse().ok().filter(|&pid| pid > 0)?,
            start: start.parse().ok()?,
        })
    }

    /// Returns the state of the agent.
    pub(super) fn state(&self) -> OwnerState {
        if self.host != process::host_name() {
            return OwnerState::OutOfSight;
        }
        if self.boot != boot() {
            return OwnerState::Ended;
        }
        if self.namespace != namespace() {
            return OwnerState::OutOfSight;
        }
        // The number may belong to another process by now.
        let is_same = process::start_time(self.pid) == Some(self.start);
        if is_same && !process::is_ending(self.pid) { OwnerState::Running } else { OwnerState::Ended }
    }

    /// Returns the path of a descriptor of the agent.
    pub(super) fn descriptor(&self, number: i32) -> PathBuf {
        format!("/proc/{}/fd/{number}", self.pid).into()
    }

    /// Returns whether `target` is the path of a descriptor of the agent.
    pub(super) fn has_descriptor(&self, target: &Path) -> bool {
        let number = target.file_name().and_then(|name| name.to_str()?.parse().ok());
        number.is_some_and(|number| target == self.descriptor(number))
    }
}

/// Returns the number of this boot of the host, without hyphens.
fn boot() -> String {
    let text = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let digits: String = text.chars().filter(char::is_ascii_alphanumeric).collect();
    if digits.is_empty() { "unknown".to_owned() } else { digits }
}

/// Returns the inode of the PID namespace of this process, 0 if it is unknown.
fn namespace() -> u64 {
    fs::metadata("/proc/self/ns/pid").map_or(0, |found| found.ino())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_is_read_from_its_text() {
        let owner = FolderOwner::this_process(7);
        assert_eq!(FolderOwner::parse(&owner.text()), Some(owner.clone()));
        assert_eq!(owner.state(), OwnerState::Running);
        for text in ["", "hostbuf", "/proc/1/fd/2", &owner.text().replace("hostbuf", "HOSTBUF")] {
            assert_eq!(FolderOwner::parse(text), None, "{text}");
        }
        assert_eq!(FolderOwner::parse(&(owner.text() + " more")), None);
    }

    #[test]
    fn an_owner_that_has_ended_is_told_from_one_out_of_sight() {
        let owner = FolderOwner::this_process(7);
        assert_eq!(FolderOwner::ended(7).state(), OwnerState::Ended);
        let rebooted = FolderOwner { boot: "another".into(), ..owner.clone() };
        assert_eq!(rebooted.state(), OwnerState::Ended);
        for hidden in [
            FolderOwner { host: "another".into(), ..owner.clone() },
            FolderOwner { namespace: owner.namespace + 1, ..owner.clone() },
        ] {
            assert_eq!(hidden.state(), OwnerState::OutOfSight);
        }
    }

    #[test]
    fn only_descriptors_of_the_agent_are_its_links() {
        let owner = FolderOwner { pid: 4711, ..FolderOwner::this_process(7) };
        assert!(owner.has_descriptor(Path::new("/proc/4711/fd/12")));
        for other in [
            "/proc/4712/fd/12",
            "/proc/4711/fd/",
            "/proc/4711/fd/x",
            "/proc/4711/maps",
            "12",
            "/proc/4711/fd/012",
        ] {
            assert!(!owner.has_descriptor(Path::new(other)), "{other}");
        }
    }
}
