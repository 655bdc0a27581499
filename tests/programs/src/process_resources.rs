//! The resources of this process that a round must return.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The time after which a resource that is still there is a leak.
const SETTLED: Duration = Duration::from_secs(20);

/// The resources of this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessResources {
    descriptors: usize,
    threads: usize,
    /// The mappings of memory files of hostbuf and of rings of io_uring.
    mappings: usize,
    /// The entries of /dev/shm that have this mark.
    shared_memory: usize,
    /// The memory that devices have pinned, among them io_uring, in KiB (VmPin).
    pinned: usize,
    /// The memory that is locked by mlock(2), in KiB (VmLck).
    locked: usize,
}

/// The resources that a ring keeps after it has lost its device while that copied.
#[derive(Clone, Copy, Debug, Default)]
pub struct KeptResources {
    pub descriptors: usize,
    pub mappings: usize,
    /// The memory that stays locked, in KiB.
    pub locked: usize,
}

/// Returns the folder for the files of the rounds: that of this program, since a folder for
/// temporary files may be in memory.
///
/// # Errors
/// The kernel's.
pub fn own_folder() -> Result<PathBuf, String> {
    let own = std::env::current_exe().map_err(|error| format!("finding this program: {error}"))?;
    own.parent().map(Path::to_owned).ok_or_else(|| format!("{} is in no folder", own.display()))
}

fn entries(folder: &str) -> usize {
    fs::read_dir(folder).map_or(0, Iterator::count)
}

/// Returns the number of all mappings of this process.
#[must_use]
pub fn all_mappings() -> usize {
    fs::read_to_string("/proc/self/maps").map_or(0, |maps| maps.lines().count())
}

/// Returns the lines of /proc/self/maps with memory files and rings of io_uring.
fn memory_files() -> Vec<String> {
    let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let is_counted = |line: &&str| line.contains("memfd:") || line.contains("io_uring");
    maps.lines()
        .filter(is_counted)
        .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect()
}

/// Returns a number of KiB of /proc/self/status.
fn status_kib(name: &str) -> usize {
    let status = fs::read_to_string("/proc/self/status").expect("/proc is mounted");
    let text = status.lines().find_map(|line| line.strip_prefix(name)).expect("Linux 3.2 has it");
    let number = text.trim_start_matches(':').trim().trim_end_matches(" kB");
    number.parse().expect("a number of KiB")
}

impl ProcessResources {
    /// Counts the resources. `mark` is a part of the names of this program's files.
    #[must_use]
    pub fn count(mark: &str) -> ProcessResources {
        let shm = fs::read_dir("/dev/shm").into_iter().flatten().flatten();
        ProcessResources {
            descriptors: entries("/proc/self/fd"),
            threads: entries("/proc/self/task"),
            mappings: memory_files().len(),
            shared_memory: shm.filter(|entry| entry.file_name().to_string_lossy().contains(mark)).count(),
            pinned: status_kib("VmPin"),
            locked: status_kib("VmLck"),
        }
    }

    /// Returns the memory that is locked by mlock(2), in KiB.
    #[must_use]
    pub fn locked_kib(&self) -> usize {
        self.locked
    }

    /// Adds what a ring keeps.
    #[must_use]
    pub fn with(mut self, kept: KeptResources) -> ProcessResources {
        self.descriptors += kept.descriptors;
        self.mappings += kept.mappings;
        self.locked += kept.locked;
        self
    }

    /// Returns whether there are at most as many of each kind.
    fn is_within(&self, before: &ProcessResources) -> bool {
        self.descriptors <= before.descriptors
            && self.threads <= before.threads
            && self.mappings <= before.mappings
            && self.shared_memory <= before.shared_memory
            && self.pinned <= before.pinned
            && self.locked <= before.locked
    }

    /// Waits until the process has no more resources than before.
    ///
    /// # Errors
    /// The resources that have not been returned.
    pub fn wait_returned(&self, mark: &str) -> Result<(), String> {
        let until = Instant::now() + SETTLED;
        loop {
            let now = ProcessResources::count(mark);
            if now.is_within(self) {
                return Ok(());
            }
            if Instant::now() > until {
                let mappings = memory_files().join("; ");
                return Err(format!("a leak: before the round {self:?}, and after it {now:?}: {mappings}"));
            }
            std::thread::sleep(Duration::from_micros(200));
        }
    }
}

/// Waits until no process has this path among its arguments.
///
/// # Errors
/// A process that is left.
pub fn wait_gone(path: &Path) -> Result<(), String> {
    let until = Instant::now() + SETTLED;
    let path = path.display().to_string();
    loop {
        let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
        let mut with_path = processes.filter(|process| {
            let arguments = fs::read(process.path().join("cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&arguments).contains(&path)
        });
        let Some(left) = with_path.next() else { return Ok(()) };
        if Instant::now() > until {
            return Err(format!("process {} is left", left.file_name().display()));
        }
        std::thread::sleep(Duration::from_micros(200));
    }
}
