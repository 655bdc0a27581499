//! The unsound monitor: the kernel reports for a long time that memory is changing, but sends no
//! event.

#![allow(unsafe_code, reason = "the tests make a userfaultfd of their own by system calls")]

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::Command;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use crate::memory::{GuardedMapping, PAGE};
use crate::{FakeCache, READ, Stamped, span, strict};

/// Another userfaultfd of this process, as a program or a library may have.
struct OtherUserfaultfd(OwnedFd);

impl OtherUserfaultfd {
    fn open() -> OtherUserfaultfd {
        const API: libc::c_ulong = 0xc018_aa3f;
        const UNMAPPINGS: u64 = 1 << 6;
        // SAFETY: no memory is passed but three words, as the request wants.
        unsafe {
            let fd = libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | 1) as i32;
            assert!(fd >= 0, "{}", io::Error::last_os_error());
            let other = OtherUserfaultfd(OwnedFd::from_raw_fd(fd));
            assert_eq!(libc::ioctl(fd, API, [0xaa, UNMAPPINGS | 1, 0].as_mut_ptr()), 0);
            other
        }
    }

    fn watch(&self, start: usize, length: usize) {
        const REGISTER: libc::c_ulong = 0xc020_aa00;
        // SAFETY: four words, as the request wants; nothing is protected.
        let done = unsafe {
            libc::ioctl(self.0.as_raw_fd(), REGISTER, [start as u64, length as u64, 2, 0].as_mut_ptr())
        };
        assert_eq!(done, 0, "{}", io::Error::last_os_error());
    }
}

/// An event that is read when this is dropped; until then the thread that changed the memory waits.
struct EventOnDrop<'a>(&'a OtherUserfaultfd);

impl Drop for EventOnDrop<'_> {
    fn drop(&mut self) {
        let mut message = [0u64; 4];
        // SAFETY: one message has 32 bytes.
        unsafe { libc::read(self.0.0.as_raw_fd(), message.as_mut_ptr().cast(), 32) };
    }
}

/// Runs `meanwhile` during an unmap of which the monitor has no event yet. One munmap covers the
/// ranges of two userfaultfds. The kernel marks both as changing and sends the first event to the
/// other one, which nobody reads.
///
/// ```text
///   |- other userfaultfd -|- the cache's -|
///   |-------------- unmapped -------------|
/// ```
fn while_memory_changes(cache: &FakeCache, meanwhile: impl FnOnce()) {
    let other = OtherUserfaultfd::open();
    let area = GuardedMapping::new(8);
    other.watch(area.at(), 4 * PAGE);
    let cached = (area.at() + 4 * PAGE) as *const u8;
    drop(cache.get(cached, 4 * PAGE, READ).unwrap());
    assert!(cache.try_get(cached, 4 * PAGE, READ).is_some());
    std::thread::scope(|scope| {
        let (done, is_done) = mpsc::channel();
        scope.spawn({
            let area = &area;
            move || {
                // SAFETY: the test's own pages.
                assert_eq!(unsafe { libc::munmap(area.at() as *mut _, area.len()) }, 0);
                done.send(()).unwrap();
            }
        });
        // If an assertion fails, this reads the event, and the other thread leaves the kernel.
        let event = EventOnDrop(&other);
        // SAFETY: asks only whether the page is mapped.
        while unsafe { libc::msync(area.at() as *mut _, PAGE, libc::MS_ASYNC) } == 0 {
            std::thread::yield_now();
        }
        assert!(is_done.try_recv().is_err());
        meanwhile();
        assert!(is_done.try_recv().is_err());
        drop(event);
        is_done.recv().unwrap();
    });
    assert!(cache.try_get(cached, 4 * PAGE, READ).is_none());
}

/// Returns whether this process runs the test alone. A monitor is unsound for the whole process, so
/// each of these tests runs itself again in its own process. That process has a single userfaultfd,
/// so that the unsound one watches all memory.
pub(crate) fn is_alone(test: &str) -> bool {
    const ALONE: &str = "HOSTBUF_TEST_ALONE";
    if std::env::var_os(ALONE).is_some() {
        return true;
    }
    let mut again = Command::new(std::env::current_exe().unwrap());
    let output = again
        .args(["--exact", test, "--nocapture"])
        .env(ALONE, "1")
        .env("HOSTBUF_CACHE_DESCRIPTORS", "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
    false
}

#[test]
fn nothing_is_kept_while_the_monitor_is_unsound() {
    if !is_alone("unsound_monitor::nothing_is_kept_while_the_monitor_is_unsound") {
        return;
    }
    let Some((fake, cache)) = strict() else { return };
    let area = GuardedMapping::new(4);
    let get = || cache.get(area.pointer(), area.len(), READ).unwrap();
    drop(get());
    assert_eq!(get().stamp(), get().stamp());
    while_memory_changes(&cache, || {
        let begun = Instant::now();
        // At first the cache does not know that the change will last long.
        while cache.stats().unproven == 0 {
            drop(get());
            assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", cache.stats());
        }
        for n in 2..=4 {
            let lease = get();
            assert_eq!(cache.stats().unproven, n);
            // invalidate returns after the cache's own thread has ended everything that it was
            // about to end.
            cache.invalidate(span(1, 1)).unwrap();
            assert_eq!(fake.live().iter().map(|live| live.0).collect::<Vec<_>>(), [lease.stamp().0]);
            drop(lease);
            assert!(cache.try_get(area.pointer(), area.len(), READ).is_none());
            // Neither earlier registrations nor this one are kept.
            assert_eq!(fake.live(), []);
        }
        assert!(begun.elapsed() < Duration::from_secs(10));
    });
    // The change has ended, so requests hit as before, once the monitor has applied its event: a
    // thread without a core may need a while for that, and requests meanwhile register for their
    // leases only.
    let ended = Instant::now();
    while get().stamp() != get().stamp() {
        assert!(ended.elapsed() < Duration::from_secs(10), "{:?}", cache.stats());
    }
}

#[test]
fn many_short_changes_do_not_make_the_monitor_unsound() {
    if !is_alone("unsound_monitor::many_short_changes_do_not_make_the_monitor_unsound") {
        return;
    }
    let Some((_, cache)) = strict() else { return };
    let area = GuardedMapping::new(4);
    let first = cache.get(area.pointer(), area.len(), READ).unwrap().stamp();
    for _ in 0..4 {
        std::thread::scope(|scope| {
            while_memory_changes(&cache, || {
                // The request queries the kernel, waits a little, and registers for its lease only.
                let asking = scope.spawn(|| {
                    assert_ne!(cache.get(area.pointer(), area.len(), READ).unwrap().stamp(), first);
                });
                // The change lasts until the request has its answer.
                asking.join().unwrap();
            });
        });
        // The change lasts longer than the limit, without requests meanwhile.
        std::thread::sleep(Duration::from_millis(1100));
    }
    assert_eq!(cache.stats().unproven, 0);
    assert_eq!(cache.get(area.pointer(), area.len(), READ).unwrap().stamp(), first);
}
