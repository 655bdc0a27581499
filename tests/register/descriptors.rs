//! The monitor's descriptors: its thread keeps no others, threads may have their own tables, and
//! the program may close descriptors that it does not own.

#![allow(unsafe_code, reason = "the tests replace and close descriptors of the monitor")]

use std::fs;
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use hostbuf::register::{MonitorMode, Overlap, Probe};
use hostbuf_tests::Scratch;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use crate::child::{End, does};
use crate::memory::{GuardedMapping, PAGE};
use crate::time_limit::within;
use crate::unsound_monitor::is_alone;
use crate::{READ, Stamped, kept_one, skip, strict};

/// Returns the descriptors in a directory of /proc, each with its number and its target.
fn descriptors(folder: &str) -> Vec<(i32, String)> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    let open = entries.filter_map(|entry| {
        // The descriptor that reads the directory is closed by now.
        let target = fs::read_link(entry.path()).ok()?;
        Some((entry.file_name().to_str()?.parse().ok()?, target.to_str()?.to_owned()))
    });
    open.collect()
}

/// Returns the directory of the monitor's thread in /proc.
pub(crate) fn monitors_thread() -> String {
    let threads = fs::read_dir("/proc/self/task").unwrap().map(|thread| thread.unwrap().path());
    let names = |thread: &std::path::PathBuf| {
        fs::read_to_string(thread.join("comm")).is_ok_and(|name| name.trim() == "hostbuf-monitor")
    };
    let thread = threads.into_iter().find(names).expect("the monitor runs");
    thread.to_str().unwrap().to_owned()
}

#[test]
fn the_monitors_thread_has_only_its_own_descriptors() {
    let (mut reader, writer) = std::io::pipe().unwrap();
    let Some((_, cache)) = strict() else { return };
    let area = GuardedMapping::new(1);
    kept_one(&cache, area.pointer(), PAGE);
    let open = descriptors(&format!("{}/fd", monitors_thread()));
    // The last descriptor is that of /proc/self/maps, for queries by address.
    let own = |target: &str| target.starts_with("anon_inode:") || target.ends_with("/maps");
    assert!(open.iter().all(|(_, target)| own(target)), "{open:?}");
    assert!(open.iter().any(|(_, target)| target.contains("userfaultfd")), "{open:?}");
    // The monitor's thread has no copy, so a descriptor that the program closes is really closed.
    drop(writer);
    assert_eq!(reader.read(&mut [0]).unwrap(), 0);
}

/// The driver of XPMEM ends the process's attachments when one of its threads closes the device in
/// its own table. A file stands for the device here, and the test looks at the tables.
#[test]
fn a_process_with_xpmem_keeps_one_descriptor_table() {
    if let Probe::Missing(why) = MonitorMode::probe() {
        return skip(&format!("the strict monitor: {why}"));
    }
    if !is_alone("descriptors::a_process_with_xpmem_keeps_one_descriptor_table") {
        return;
    }
    let folder = Scratch::new("xpmem");
    fs::create_dir(folder.0.join("dev")).unwrap();
    let device = fs::File::create(folder.path("dev/xpmem")).unwrap();
    let (_, cache) = strict().unwrap();
    let area = GuardedMapping::new(1);
    let kept = kept_one(&cache, area.pointer(), PAGE);
    let monitors = descriptors(&format!("{}/fd", monitors_thread()));
    assert!(monitors.iter().any(|(fd, _)| *fd == device.as_raw_fd()), "{monitors:?}");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let why = MonitorMode::unshare_descriptors().unwrap_err().to_string();
            assert!(why.contains("/dev/xpmem"), "{why}");
            assert_eq!(cache.get(area.pointer(), PAGE, READ).unwrap().stamp(), kept);
        });
    });
}

/// A process with an invalid variable gets an error, not a cache that keeps no registrations.
#[test]
fn an_invalid_number_of_descriptors_is_an_error() {
    const NAME: &str = "HOSTBUF_CACHE_DESCRIPTORS";
    if std::env::var(NAME).is_ok_and(|value| value == "40") {
        let why = MonitorMode::from_environment().unwrap_err().to_string();
        return assert!(why.contains("invalid HOSTBUF_CACHE_DESCRIPTORS \"40\""), "{why}");
    }
    let mut again = Command::new(std::env::current_exe().unwrap());
    let test = "descriptors::an_invalid_number_of_descriptors_is_an_error";
    let output = again.args(["--exact", test, "--nocapture"]).env(NAME, "40").output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
}

/// A subscriber that counts the warnings about threads without the descriptors.
struct Warnings(Arc<AtomicUsize>);

impl Subscriber for Warnings {
    fn enabled(&self, about: &Metadata<'_>) -> bool {
        *about.level() <= Level::WARN && about.target().contains("monitor")
    }

    fn event(&self, _: &Event<'_>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// Programs that become daemons close all descriptors, and open others with the same numbers.
#[test]
fn a_replaced_descriptor_is_noticed_at_once_and_reported_once() {
    if !is_alone("descriptors::a_replaced_descriptor_is_noticed_at_once_and_reported_once") {
        return;
    }
    let Some((fake, cache)) = strict() else { return };
    let area = GuardedMapping::new(2);
    let before = kept_one(&cache, area.pointer(), PAGE);
    let other = fs::File::open("/dev/null").unwrap();
    for fd in userfaultfds() {
        replace(fd, &other);
    }
    let warnings = Arc::new(AtomicUsize::new(0));
    let counting = tracing::Dispatch::new(Warnings(warnings.clone()));
    let requests = 100;
    let begun = Instant::now();
    tracing::dispatcher::with_default(&counting, || {
        for n in 0..requests {
            let lease = cache.get(area.pointer(), PAGE, READ).unwrap();
            assert_ne!(lease.stamp(), before, "an unsound monitor cannot prove that it is live");
            assert_eq!(cache.stats().unproven, n + 1);
        }
    });
    // Waiting for a change would take 40 ms for each request.
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
    assert_eq!(warnings.load(Ordering::Relaxed), 1);
    drop(cache);
    assert!(fake.live().is_empty());
}

/// `UFFDIO_WRITEPROTECT`, the request with which a hit queries a userfaultfd.
const WRITE_PROTECT: libc::c_ulong = 0xc018_aa06;

/// Returns the userfaultfds of this process.
fn userfaultfds() -> Vec<i32> {
    let open = descriptors("/proc/self/fd").into_iter();
    open.filter(|(_, target)| target.contains("userfaultfd")).map(|(fd, _)| fd).collect()
}

/// Replaces a descriptor of the monitor by a copy of `other`, as a program with a descriptor bug
/// may.
fn replace(fd: i32, other: &impl AsRawFd) {
    // SAFETY: on purpose: the monitor must live with that.
    assert_eq!(unsafe { libc::dup2(other.as_raw_fd(), fd) }, fd);
}

/// Opens a file that answers `EINVAL` to any request that it does not know.
fn file_that_refuses_as_a_userfaultfd_does() -> fs::File {
    let file = fs::File::open("/dev/urandom").unwrap();
    // SAFETY: the request reads three words.
    let answer = unsafe { libc::ioctl(file.as_raw_fd(), WRITE_PROTECT, [0u64; 3].as_ptr()) };
    assert_eq!((answer, std::io::Error::last_os_error().raw_os_error()), (-1, Some(libc::EINVAL)));
    file
}

/// Some files answer an unknown request with the same error as a quiet userfaultfd answers the
/// query of a hit. A miss detects such a file in place of the userfaultfd, and after that no
/// earlier registration hits.
#[test]
fn a_file_that_answers_as_a_quiet_userfaultfd_is_noticed_by_the_next_miss() {
    if !is_alone("descriptors::a_file_that_answers_as_a_quiet_userfaultfd_is_noticed_by_the_next_miss") {
        return;
    }
    let Some((fake, cache)) = strict() else { return };
    let other = file_that_refuses_as_a_userfaultfd_does();
    let (known, new) = (GuardedMapping::new(2), GuardedMapping::new(2));
    // The cache knows one page of `new`, so that the other one is a miss in watched memory.
    let before = [&known, &new].map(|area| kept_one(&cache, area.pointer(), PAGE));
    let [fd] = userfaultfds()[..] else { panic!("{:?}", userfaultfds()) };
    // SAFETY: open as long as the cache lives.
    let real = unsafe { BorrowedFd::borrow_raw(fd) }.try_clone_to_owned().unwrap();
    replace(fd, &other);
    for n in 1..=3 {
        drop(cache.get((new.at() + PAGE) as *const u8, PAGE, READ).unwrap());
        assert_eq!(cache.stats().unproven, 2 * n - 1);
        assert!(cache.try_get(known.pointer(), PAGE, READ).is_none());
        assert_ne!(cache.get(known.pointer(), PAGE, READ).unwrap().stamp(), before[0]);
        assert_eq!(cache.stats().unproven, 2 * n);
    }
    // Earlier registrations hit again once the userfaultfd is back in its place.
    replace(fd, &real);
    assert_eq!([&known, &new].map(|area| kept_one(&cache, area.pointer(), PAGE)), before);
    assert_eq!(cache.stats().unproven, 6);
    drop(cache);
    assert!(fake.live().is_empty());
}

/// A thread with an older table of descriptors drops the last cache. It cannot stop the monitor and
/// does not wait for it. It neither closes nor writes to the files that have the numbers of the
/// monitor's descriptors in its table.
#[test]
fn the_last_cache_can_be_dropped_in_a_thread_without_the_monitors_descriptors() {
    if !is_alone("descriptors::the_last_cache_can_be_dropped_in_a_thread_without_the_monitors_descriptors") {
        return;
    }
    if strict().is_none() {
        return;
    }
    let refusing = file_that_refuses_as_a_userfaultfd_does();
    let (mut reader, writer) = std::io::pipe().unwrap();
    nix::fcntl::fcntl(&reader, nix::fcntl::FcntlArg::F_SETFL(nix::fcntl::OFlag::O_NONBLOCK)).unwrap();
    for in_their_place in [None, Some(writer.as_fd()), Some(refusing.as_fd())] {
        let (send, receive) = mpsc::channel::<(crate::FakeCache, Vec<i32>)>();
        let (ready, is_ready) = mpsc::channel();
        std::thread::scope(|scope| {
            let thread = scope.spawn(move || {
                hostbuf_os::descriptors::unshare().unwrap();
                ready.send(()).unwrap();
                let (cache, numbers) = receive.recv().unwrap();
                for &fd in &numbers {
                    if let Some(other) = in_their_place {
                        replace(fd, &other);
                    }
                }
                within("dropping the last cache", Duration::from_secs(20), || drop(cache));
                for &fd in &numbers {
                    // SAFETY: asks only whether it is open.
                    let is_open = unsafe { libc::fcntl(fd, libc::F_GETFD) } != -1;
                    assert_eq!(is_open, in_their_place.is_some(), "descriptor {fd}");
                }
            });
            is_ready.recv().unwrap();
            let before = descriptors("/proc/self/fd");
            let (_, cache) = strict().expect("there was one");
            let area = GuardedMapping::new(1);
            kept_one(&cache, area.pointer(), PAGE);
            let numbers = descriptors("/proc/self/fd").into_iter().map(|(fd, _)| fd);
            let numbers =
                numbers.filter(|fd| !before.iter().any(|(there, _)| there == fd)).collect::<Vec<_>>();
            // The list of mappings twice, two eventfds, a userfaultfd and an epoll instance.
            assert!(numbers.len() >= 5, "{numbers:?}");
            send.send((cache, numbers)).unwrap();
            thread.join().unwrap();
            // The memory is still watched, and the monitor runs.
            within("unmapping", Duration::from_secs(20), || drop(area));
        });
        let nothing = reader.read(&mut [0]).unwrap_err();
        assert_eq!(nothing.kind(), std::io::ErrorKind::WouldBlock, "the monitor wrote into another file");
    }
}

/// The program has closed the eventfd that stops the monitor, and opened another file with its
/// number. Dropping the last cache neither waits forever nor writes to that file.
#[test]
fn the_last_cache_can_be_dropped_when_only_the_monitors_eventfd_is_replaced() {
    if !is_alone("descriptors::the_last_cache_can_be_dropped_when_only_the_monitors_eventfd_is_replaced") {
        return;
    }
    let before = descriptors("/proc/self/fd");
    let Some((_, cache)) = strict() else { return };
    let area = GuardedMapping::new(1);
    kept_one(&cache, area.pointer(), PAGE);
    let (mut reader, writer) = std::io::pipe().unwrap();
    nix::fcntl::fcntl(&reader, nix::fcntl::FcntlArg::F_SETFL(nix::fcntl::OFlag::O_NONBLOCK)).unwrap();
    let events = descriptors("/proc/self/fd").into_iter().filter(|(_, target)| target.contains("eventfd"));
    let events: Vec<i32> = events.filter(|one| !before.contains(one)).map(|(fd, _)| fd).collect();
    assert_eq!(events.len(), 2);
    events.iter().for_each(|&fd| replace(fd, &writer));
    within("dropping the last cache", Duration::from_secs(20), || drop(cache));
    let nothing = reader.read(&mut [0]).unwrap_err();
    assert_eq!(nothing.kind(), std::io::ErrorKind::WouldBlock, "the monitor wrote into another file");
    within("unmapping", Duration::from_secs(20), || drop(area));
}

/// The program has 64 descriptors left, or the monitor uses a single userfaultfd. The monitor opens
/// its other descriptors first, so that it runs with just enough of them for one userfaultfd.
#[test]
fn the_monitor_leaves_the_program_descriptors() {
    const SPARE: usize = 64;
    const MOST: usize = 16;
    if strict().is_none() {
        return;
    }
    // The list of mappings, two eventfds and the epoll instance; and the list once more if it
    // supports queries.
    let others = if hostbuf_os::kernel::version() < (6, 11) { 4 } else { 5 };
    let enough = others + MOST + SPARE;
    for (free, expected) in [
        (enough + 1, Some(MOST)),
        (enough, Some(MOST)),
        (enough - 1, Some(1)),
        (enough - SPARE, Some(1)),
        (enough - SPARE - 3, Some(1)),
        (others + 1, Some(1)),
        (others, None),
    ] {
        let end = does(|| {
            // From here on the numbers of descriptors have no gap.
            let highest = descriptors("/proc/self/fd").into_iter().map(|(fd, _)| fd).max().unwrap();
            let open = || fs::File::open("/dev/null");
            let mut filling = vec![open().unwrap()];
            while filling.last().unwrap().as_raw_fd() <= highest {
                filling.push(open().unwrap());
            }
            let used = filling.last().unwrap().as_raw_fd() as usize + 1;
            let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
            setrlimit(Resource::RLIMIT_NOFILE, (used + free) as u64, most).unwrap();
            let before = userfaultfds_below(used + free);
            let (_, cache) = crate::cache(Overlap::Free, crate::MANY, MonitorMode::Strict);
            let opened = userfaultfds_below(used + free) - before;
            let left = std::iter::from_fn(|| open().ok()).collect::<Vec<_>>().len();
            let area = GuardedMapping::new(1);
            drop(cache.get(area.pointer(), PAGE, READ).unwrap());
            let found = (cache.stats().unproven == 0).then_some(opened);
            eprintln!("{free} free: {opened} userfaultfds, {left} left");
            found == expected && left == free - found.map_or(0, |opened| others + opened)
        });
        assert_eq!(end, End::Well, "{free} descriptors");
    }
}

/// Returns the number of userfaultfds of this process below a number, without a descriptor of its
/// own.
fn userfaultfds_below(end: usize) -> usize {
    let is_one = |fd: &usize| {
        fs::read_link(format!("/proc/self/fd/{fd}"))
            .is_ok_and(|target| target.to_string_lossy().contains("userfaultfd"))
    };
    (0..end).filter(is_one).count()
}

/// One thread has unshared its table before the monitor started, and another one with
/// `unshare_descriptors`.
#[test]
fn an_unshared_thread_needs_the_monitors_descriptors_in_its_table() {
    let (go, waits) = mpsc::channel::<()>();
    let (ready, is_ready) = mpsc::channel();
    let (unknown, waits_too) = mpsc::channel::<(usize, Arc<crate::FakeCache>)>();
    let early = std::thread::spawn(move || {
        // SAFETY: this thread opens and closes no descriptors.
        assert_eq!(unsafe { libc::unshare(libc::CLONE_FILES) }, 0);
        ready.send(()).unwrap();
        waits.recv().unwrap();
        let (address, cache) = waits_too.recv().unwrap();
        for n in 1..=3 {
            drop(cache.get(address as *const u8, PAGE, READ).unwrap());
            assert_eq!(cache.stats().unproven, n);
            assert!(cache.try_get(address as *const u8, PAGE, READ).is_none());
        }
    });
    is_ready.recv().unwrap();
    let area = GuardedMapping::new(1);
    let Some((_, cache)) = strict() else {
        drop(go);
        return assert!(early.join().is_err());
    };
    let cache = Arc::new(cache);
    let kept = kept_one(&cache, area.pointer(), PAGE);
    go.send(()).unwrap();
    unknown.send((area.at(), cache.clone())).unwrap();
    early.join().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            MonitorMode::unshare_descriptors().unwrap();
            assert_eq!(cache.get(area.pointer(), PAGE, READ).unwrap().stamp(), kept);
        });
    });
}

/// An unshared thread outlives the caches, and the same monitor serves later caches.
#[test]
fn an_unshared_thread_sees_changes_under_later_caches_too() {
    if strict().is_none() {
        return;
    }
    let (send, addresses) = mpsc::channel::<(Arc<crate::FakeCache>, usize)>();
    let (answer, stamps) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        MonitorMode::unshare_descriptors().unwrap();
        // A second call has no effect.
        MonitorMode::unshare_descriptors().unwrap();
        for (cache, address) in addresses {
            let hit = cache.try_get(address as *const u8, PAGE, READ).map(|lease| lease.stamp());
            answer.send((hit, kept_one(&cache, address as *const u8, PAGE))).unwrap();
        }
    });
    for round in 0..5 {
        let (_, cache) = strict().unwrap();
        let cache = Arc::new(cache);
        let area = GuardedMapping::new(1);
        let kept = kept_one(&cache, area.pointer(), PAGE);
        send.send((cache.clone(), area.at())).unwrap();
        let (_, stamp) = stamps.recv().unwrap();
        assert_eq!(stamp, kept, "round {round}");
        // SAFETY: the test's own page.
        unsafe { libc::madvise(area.at() as *mut _, PAGE, libc::MADV_DONTNEED) };
        send.send((cache.clone(), area.at())).unwrap();
        let (hit, stamp) = stamps.recv().unwrap();
        assert!(hit != Some(kept) && stamp != kept, "round {round}: a registration of pages that have gone");
    }
    drop(send);
    thread.join().unwrap();
}
