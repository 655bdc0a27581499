//! The monitor's proof: before anybody relies on it, it must see changes that this makes.

#![allow(unsafe_code)]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::process_monitor::ProcessMonitor;
use super::watched::{Unwatched, Watcher};
use crate::os::{kernel, memory};
use crate::register::poison::IgnorePoison;
use crate::span::Span;

/// Before Linux 5.15 the first change that ended cleared the mark of all.
const OLDEST: (u32, u32) = (5, 15);
const PATIENCE: Duration = Duration::from_secs(2);

pub(super) fn check_kernel() -> Result<(), String> {
    let version = kernel::version();
    if version < OLDEST {
        let (major, minor) = version;
        return Err(format!(
            "Linux {major}.{minor}: userfaultfd can be relied on from {}.{} on",
            OLDEST.0, OLDEST.1
        ));
    }
    Ok(())
}

/// What the proof has heard: how many changes, and of which ranges. The room is made before anything changes.
struct ChangeRecorder {
    count: AtomicUsize,
    spans: Mutex<Vec<Span>>,
}

impl Watcher for ChangeRecorder {
    fn changed(&self, span: Span) {
        let mut spans = self.spans.lock().ignore_poison();
        if spans.len() < spans.capacity() {
            spans.push(span);
        }
        self.count.fetch_add(1, Ordering::Release);
    }
}

/// Changes memory in each way that must be told, and looks whether a question afterwards is answered rightly.
///
/// # Errors
/// What it did not see.
pub(super) fn run(monitor: &ProcessMonitor) -> Result<(), String> {
    let recorder =
        Arc::new(ChangeRecorder { count: AtomicUsize::new(0), spans: Mutex::new(Vec::with_capacity(64)) });
    monitor.subscribe(recorder.clone()).map_err(|e| e.to_string())?;
    let result = changes(monitor, &recorder);
    monitor.unsubscribe(&*recorder);
    result
}

/// Changes so many bytes at an address; whether the kernel did it.
type ChangeMemory = fn(usize, usize) -> bool;

fn changes(monitor: &ProcessMonitor, recorder: &ChangeRecorder) -> Result<(), String> {
    let page = memory::page_size() as usize;
    // By system calls of this thread, which the kernel holds until the message
    // has been read.
    let ways: [(&str, ChangeMemory); 5] = [
        ("madvise", |at, length| {
            // SAFETY: the caller's own pages, used by nobody.
            unsafe { libc::madvise(at as *mut _, length, libc::MADV_DONTNEED) == 0 }
        }),
        ("mmap over it", |at, length| {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
            // SAFETY: as above.
            unsafe { libc::mmap(at as *mut _, length, libc::PROT_READ, flags, -1, 0) != libc::MAP_FAILED }
        }),
        ("munmap", |at, length| {
            // SAFETY: as above; the last change unmaps the rest.
            unsafe { libc::munmap(at as *mut _, length) == 0 }
        }),
        ("mremap", |at, length| {
            // SAFETY: as above: moved elsewhere, and unmapped there.
            unsafe {
                let moved = libc::mremap(at as *mut _, length, 2 * length, libc::MREMAP_MAYMOVE);
                moved != libc::MAP_FAILED && libc::munmap(moved, 2 * length) == 0
            }
        }),
        // Of this one only the event of a move tells: the range stays mapped, and empty.
        ("mremap that leaves the mapping", |at, length| {
            let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_DONTUNMAP;
            // SAFETY: as above: the pages are moved elsewhere, and unmapped there.
            unsafe {
                let moved =
                    libc::mremap(at as *mut _, length, length, flags, std::ptr::null_mut::<libc::c_void>());
                moved != libc::MAP_FAILED && libc::munmap(moved, length) == 0
            }
        }),
    ];
    for (way, change) in ways {
        let length = 4 * page;
        // SAFETY: new anonymous memory, with a page behind it that keeps mremap from growing in place.
        let area = unsafe {
            let (rw, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
            let area = libc::mmap(std::ptr::null_mut(), length + page, rw, flags, -1, 0);
            if area == libc::MAP_FAILED || libc::mprotect(area.byte_add(length), page, libc::PROT_NONE) != 0 {
                return Err("the proof has no memory".into());
            }
            area.cast::<u8>().write_bytes(1, length);
            area as usize
        };
        let span = Span::new(area, length).map_err(|e| e.to_string())?;
        let outcome = seen(monitor, recorder, span, || change(area, length));
        // SAFETY: what is left of it; where it has gone nothing has come, since nobody else knows the address... unless
        // another thread was given it: so only the guard page, which is still there.
        unsafe { libc::munmap((area + length) as *mut _, page) };
        if !["munmap", "mremap"].contains(&way) {
            // SAFETY: still this function's own.
            unsafe { libc::munmap(area as *mut _, length) };
        }
        outcome.map_err(|why| format!("the monitor did not prove itself: {way}: {why}"))?;
    }
    quiet(monitor)
}

fn seen(
    monitor: &ProcessMonitor,
    recorder: &ChangeRecorder,
    span: Span,
    change: impl FnOnce() -> bool,
) -> Result<(), String> {
    let begun = Instant::now();
    while let Err(why) = monitor.watch(span) {
        if why != Unwatched::Busy || begun.elapsed() > PATIENCE {
            return Err(format!("the memory cannot be watched: {why:?}"));
        }
        std::thread::yield_now();
    }
    quiet(monitor)?;
    let before = monitor.sequence();
    if !change() {
        return Err("the system call failed".into());
    }
    // The change is over for this thread. Whoever asks now must not be told that nothing has happened.
    if monitor.unchanged_since(before) {
        return Err("it went unnoticed".into());
    }
    let begun = Instant::now();
    let told = || recorder.spans.lock().ignore_poison().iter().any(|s| s.overlaps(span));
    while !told() {
        if begun.elapsed() > PATIENCE {
            return Err("it was not told".into());
        }
        std::thread::yield_now();
    }
    Ok(())
}

/// Nothing happens, so the answer must become "unchanged".
fn quiet(monitor: &ProcessMonitor) -> Result<(), String> {
    let begun = Instant::now();
    loop {
        let before = monitor.sequence();
        if monitor.unchanged_since(before) {
            return Ok(());
        }
        if begun.elapsed() > PATIENCE {
            return Err("the kernel says all the time that memory is changing".into());
        }
        std::thread::yield_now();
    }
}
