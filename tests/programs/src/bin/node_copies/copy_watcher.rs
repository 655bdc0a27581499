//! Finds the memory file of copies among the descriptors of this process. Until the copies are
//! sealed, only the rank that makes them has it.

use std::fs::{File, OpenOptions};
use std::sync::atomic::{AtomicBool, Ordering};

/// Runs `work` while a thread calls `each` with each memory file with copies that it finds, until
/// that returns true.
pub fn watch<T>(each: impl Fn(&File) -> bool + Send, work: impl FnOnce() -> T) -> T {
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let ended = &ended;
        scope.spawn(move || {
            while !ended.load(Ordering::Relaxed) {
                if find().is_some_and(|file| each(&file)) {
                    return;
                }
            }
        });
        let result = work();
        ended.store(true, Ordering::Relaxed);
        result
    })
}

/// Opens a memory file with copies that this process has.
fn find() -> Option<File> {
    let entries = std::fs::read_dir("/proc/self/fd").ok()?.flatten();
    let is_copy = |path: &std::path::Path| {
        std::fs::read_link(path).is_ok_and(|target| target.to_string_lossy().contains(":/copies/"))
    };
    let path = entries.map(|entry| entry.path()).find(|path| is_copy(path))?;
    OpenOptions::new().read(true).write(true).open(path).ok()
}
