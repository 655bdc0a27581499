//! Runs a command, and compares what hostbuf could have left on the host with what was there
//! before.
//!
//!   leaves_nothing COMMAND...
//!
//! These are each node's shared memory and pages of its pool, processes with an executable of
//! hostbuf, their sockets, and entries of /dev/shm. It prints a line for what is still there after
//! the time that an agent may take to end. The exit status is the command's.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::time::{Duration, Instant};

use hostbuf_programs::checks::text;
use hostbuf_programs::numa::sys_node::{free_pool_pages, memory, online, pool_pages};

/// The time that an agent may take to end after its job.
const TO_END: Duration = Duration::from_secs(20);

fn main() -> Result<(), String> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (program, arguments) = arguments.split_first().ok_or("a command is missing")?;
    let before = present()?;
    let status = Command::new(program).args(arguments).status().map_err(text)?;
    let ended = Instant::now();
    let mut left = present()?.since(&before);
    while !left.is_empty() && ended.elapsed() < TO_END {
        std::thread::sleep(Duration::from_millis(20));
        left = present()?.since(&before);
    }
    for what in left {
        println!("left: {what}");
    }
    std::process::exit(status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0)))
}

/// The state of the host, as far as hostbuf changes it.
struct HostState {
    /// The bytes of shared memory and the taken huge pages of each node.
    taken: BTreeMap<String, usize>,
    /// A name for each process, socket and entry.
    present: BTreeSet<String>,
}

impl HostState {
    /// Returns what is there now and was not there before.
    fn since(&self, before: &HostState) -> Vec<String> {
        let more = self.taken.iter().filter_map(|(what, now)| {
            let more = now.saturating_sub(before.taken[what]);
            (more > 0).then(|| format!("{more} more of {what}"))
        });
        more.chain(self.present.difference(&before.present).cloned()).collect()
    }
}

fn present() -> Result<HostState, String> {
    // The counters of nodes lack what each CPU has not added yet, up to some dozen pages; reading
    // this file makes the kernel add it. Only root may.
    let _ = fs::read("/proc/sys/vm/stat_refresh");
    let mut taken = BTreeMap::new();
    for node in online()? {
        taken.insert(format!("the bytes of shared memory on node {node}"), memory(node, "Shmem")?);
        let huge = pool_pages(node)?.saturating_sub(free_pool_pages(node)?);
        taken.insert(format!("the pages of the pool of node {node}"), huge);
    }
    let mut present = BTreeSet::new();
    for entry in fs::read_dir("/proc").map_err(text)? {
        let entry = entry.map_err(text)?;
        // Processes end meanwhile, and other entries have no executable.
        let Ok(executable) = fs::read_link(entry.path().join("exe")) else { continue };
        if executable.file_name().is_some_and(|name| name.to_string_lossy().starts_with("hostbuf")) {
            present.insert(format!("process {} of {}", entry.file_name().display(), executable.display()));
        }
    }
    let sockets = fs::read_to_string("/proc/net/unix").map_err(text)?;
    let paths = sockets.lines().filter_map(|line| line.split_whitespace().nth(7));
    present.extend(paths.filter(|path| path.contains("hostbuf")).map(|path| format!("socket {path}")));
    if let Ok(entries) = fs::read_dir("/dev/shm") {
        present.extend(entries.flatten().map(|entry| format!("/dev/shm/{}", entry.file_name().display())));
    }
    Ok(HostState { taken, present })
}
