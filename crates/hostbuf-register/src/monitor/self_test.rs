//! The self-test of a monitor: it must report the changes that this module makes, before any cache
//! relies on it.

#![allow(unsafe_code, reason = "changes mappings of its own")]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use hostbuf_os::poison::IgnorePoison;

use super::process_monitor::ProcessMonitor;
use super::watched::{Unwatched, Watcher};
use crate::span::Span;
use hostbuf_os::{kernel, memory};

/// The oldest kernel version with a reliable mark. Before it, the first change that ended cleared
/// the mark of all changes.
const OLDEST: (u32, u32) = (5, 15);
/// The time for which a change may take to be reported.
const REPORT_TIMEOUT: Duration = Duration::from_secs(2);

/// Checks that the kernel is new enough.
///
/// # Errors
/// A text with both versions.
pub(super) fn check_kernel() -> Result<(), String> {
    let version = kernel::version();
    if version < OLDEST {
        let (major, minor) = version;
        return Err(format!(
            "Linux {major}.{minor}: userfaultfd is reliable from Linux {}.{} on",
            OLDEST.0, OLDEST.1
        ));
    }
    Ok(())
}

/// The reported changes. All memory is allocated before anything changes.
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

/// Changes memory in each way that must be reported, and checks that a query afterwards is answered
/// correctly.
///
/// # Errors
/// A text with the first change that the monitor has not reported.
pub(super) fn run(monitor: &ProcessMonitor) -> Result<(), String> {
    let recorder =
        Arc::new(ChangeRecorder { count: AtomicUsize::new(0), spans: Mutex::new(Vec::with_capacity(64)) });
    monitor.subscribe(recorder.clone()).map_err(|e| e.to_string())?;
    let result = make_changes(monitor, &recorder);
    monitor.unsubscribe(&*recorder);
    result
}

/// Changes a number of bytes at an address. Returns whether the system call has succeeded.
type ChangeMemory = fn(usize, usize) -> bool;

/// Makes each kind of change.
fn make_changes(monitor: &ProcessMonitor, recorder: &ChangeRecorder) -> Result<(), String> {
    let page = memory::page_size() as usize;
    // The kernel blocks each system call until the monitor has read its event.
    let ways: [(&str, ChangeMemory); 5] = [
        ("madvise", |at, length| {
            // SAFETY: pages of the caller, which nothing uses.
            unsafe { libc::madvise(at as *mut _, length, libc::MADV_DONTNEED) == 0 }
        }),
        ("mmap over it", |at, length| {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
            // SAFETY: as above.
            unsafe { libc::mmap(at as *mut _, length, libc::PROT_READ, flags, -1, 0) != libc::MAP_FAILED }
        }),
        ("munmap", |at, length| {
            // SAFETY: as above.
            unsafe { libc::munmap(at as *mut _, length) == 0 }
        }),
        ("mremap", |at, length| {
            // SAFETY: as above: moved elsewhere, and unmapped there.
            unsafe {
                let moved = libc::mremap(at as *mut _, length, 2 * length, libc::MREMAP_MAYMOVE);
                moved != libc::MAP_FAILED && libc::munmap(moved, 2 * length) == 0
            }
        }),
        // Only the event of the move reports this change: the range stays mapped, and empty.
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
        // SAFETY: new anonymous memory, with a page behind it that keeps mremap from growing in
        // place.
        let area = unsafe {
            let (rw, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
            let area = libc::mmap(std::ptr::null_mut(), length + page, rw, flags, -1, 0);
            if area == libc::MAP_FAILED || libc::mprotect(area.byte_add(length), page, libc::PROT_NONE) != 0 {
                return Err("the self-test has no memory".into());
            }
            area.cast::<u8>().write_bytes(1, length);
            area as usize
        };
        let span = Span::new(area, length).map_err(|e| e.to_string())?;
        let outcome = check_reported(monitor, recorder, span, || change(area, length));
        // After an unmap, another thread may have mapped memory before the guard page.
        let left = if ["munmap", "mremap"].contains(&way) { 0 } else { length };
        // SAFETY: the guard page is still mapped, as is the part that the change leaves. Both
        // belong to this function.
        unsafe { libc::munmap((area + length - left) as *mut _, left + page) };
        outcome.map_err(|why| format!("the monitor has failed its self-test: {way}: {why}"))?;
    }
    wait_until_quiet(monitor)
}

/// Makes a change of watched memory, and checks that the monitor reports it.
fn check_reported(
    monitor: &ProcessMonitor,
    recorder: &ChangeRecorder,
    span: Span,
    change: impl FnOnce() -> bool,
) -> Result<(), String> {
    let begun = Instant::now();
    while let Err(why) = monitor.watch(span) {
        if why != Unwatched::Busy || begun.elapsed() > REPORT_TIMEOUT {
            return Err(format!("the memory cannot be watched: {why:?}"));
        }
        std::thread::yield_now();
    }
    wait_until_quiet(monitor)?;
    let before = monitor.sequence();
    if !change() {
        return Err("the system call failed".into());
    }
    // The system call has returned, so from now on no query may answer that nothing has changed.
    if monitor.unchanged_since(before) {
        return Err("a query after the change did not notice it".into());
    }
    let begun = Instant::now();
    let is_reported = || recorder.spans.lock().ignore_poison().iter().any(|s| s.overlaps(span));
    while !is_reported() {
        if begun.elapsed() > REPORT_TIMEOUT {
            return Err("the monitor did not report it".into());
        }
        std::thread::yield_now();
    }
    Ok(())
}

/// Waits until a query answers that nothing has changed.
fn wait_until_quiet(monitor: &ProcessMonitor) -> Result<(), String> {
    let begun = Instant::now();
    loop {
        let before = monitor.sequence();
        if monitor.unchanged_since(before) {
            return Ok(());
        }
        if begun.elapsed() > REPORT_TIMEOUT {
            return Err("the kernel reports a change in progress without end".into());
        }
        std::thread::yield_now();
    }
}
