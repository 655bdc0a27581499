//! The shared memory of this process, by its owner.

use std::fs;
use std::path::PathBuf;

/// The owner of shared memory, by the name of its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MemoryOwner {
    /// The pool.
    Hostbuf,
    /// zenoh's own shared memory: the metadata of a producer, and the files of its segments.
    Zenoh,
    /// Anything else.
    Other,
}

impl MemoryOwner {
    fn of(path: &str) -> MemoryOwner {
        if path.contains("hostbuf-pool") {
            MemoryOwner::Hostbuf
        } else if path.contains(".zenoh") {
            MemoryOwner::Zenoh
        } else {
            MemoryOwner::Other
        }
    }
}

/// The shared memory of this process that has one owner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
// Exhaustive: tests compare all of it.
pub struct ProcessMemory {
    /// The number of shared mappings.
    pub mappings: usize,
    /// The length of locked shared mappings in KiB.
    pub locked_kib: u64,
    /// The number of descriptors.
    pub descriptors: usize,
}

impl ProcessMemory {
    /// Returns the memory of `owner` that this process has now.
    ///
    /// # Panics
    /// Without `/proc`.
    #[must_use]
    pub fn of(owner: MemoryOwner) -> ProcessMemory {
        let mut memory = ProcessMemory::default();
        let maps = fs::read_to_string("/proc/self/smaps").expect("/proc is mounted");
        let (mut is_counted, mut kib) = (false, 0);
        for line in maps.lines() {
            let mut words = line.split_whitespace();
            match words.next() {
                Some("Size:") => kib = words.next().and_then(|kib| kib.parse().ok()).expect("a number"),
                // Not `Locked:`, which counts a page in part if other processes have it.
                Some("VmFlags:") if is_counted && words.any(|flag| flag == "lo") => memory.locked_kib += kib,
                Some(first) if !first.ends_with(':') => {
                    let is_shared = words.next().is_some_and(|access| access.ends_with('s'));
                    let path = words.skip(3).collect::<Vec<_>>().join(" ");
                    is_counted = is_shared && MemoryOwner::of(&path) == owner;
                    memory.mappings += usize::from(is_counted);
                }
                _ => {}
            }
        }
        let targets = fs::read_dir("/proc/self/fd").expect("/proc is mounted").flatten();
        let targets = targets.filter_map(|entry| fs::read_link(entry.path()).ok());
        let is_owned = |path: &PathBuf| MemoryOwner::of(&path.to_string_lossy()) == owner;
        memory.descriptors = targets.filter(is_owned).count();
        memory
    }
}
