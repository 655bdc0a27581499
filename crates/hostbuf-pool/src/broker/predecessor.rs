//! The processes that have memory of an earlier broker.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;

use hostbuf_os::{Bytes, process};

use crate::segment::SegmentFile;

/// A process with files of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct KnownProcess {
    pub(super) pid: i32,
    /// The start time, which tells it from a later process with its number.
    started: u64,
    /// The number of bytes of the data files that it has.
    pub(super) bytes: u64,
}

impl KnownProcess {
    /// Returns whether the process still runs.
    pub(super) fn is_running(&self) -> bool {
        process::start_time(self.pid) == Some(self.started) && process::state(self.pid) != Some('Z')
    }

    /// Describes the process: `process 41 (camera) 64 MiB`.
    pub(super) fn describe(&self) -> String {
        let stopped = if process::state(self.pid) == Some('T') { ", stopped" } else { "" };
        format!("process {} ({}{stopped}) {}", self.pid, process::name(self.pid), Bytes(self.bytes))
    }
}

/// Returns the other processes of this user that have data files of a pool open. Processes in PID
/// namespaces that are not visible here are missing; they connect to this broker by themselves.
pub(super) fn processes_with_segments() -> Vec<KnownProcess> {
    let own = (std::process::id() as i32, nix::unistd::geteuid().as_raw());
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter(|&pid| pid != own.0).filter_map(|pid| with_segments(pid, own.1)).collect()
}

fn with_segments(pid: i32, uid: u32) -> Option<KnownProcess> {
    let started = process::start_time(pid)?;
    if fs::metadata(format!("/proc/{pid}")).ok()?.uid() != uid {
        return None;
    }
    let name = format!("/memfd:{}", SegmentFile::Data.name());
    let (mut files, mut bytes) = (BTreeSet::new(), 0);
    for entry in fs::read_dir(format!("/proc/{pid}/fd")).ok()?.flatten() {
        let path = entry.path();
        let is_data = fs::read_link(&path)
            .is_ok_and(|target| target.to_str().is_some_and(|target| target.starts_with(&name)));
        match fs::metadata(&path) {
            Ok(file) if is_data && files.insert(file.ino()) => bytes += file.len(),
            _ => {}
        }
    }
    (!files.is_empty()).then_some(KnownProcess { pid, started, bytes })
}
