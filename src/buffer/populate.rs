//! Taking a segment's pages, all of them, before anybody uses it.
//!
//! Populating is the allocation: `MADV_POPULATE_WRITE` from several workers is as fast as touching gets, answers
//! with an error where a touch would raise SIGBUS, and puts the pages where the memory policy says. A memory cgroup
//! answers with SIGKILL; so where one limits this process the workers are children made for this, and a killed
//! child is the answer "no space".

#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, fork};

use crate::buffer::options::Pages;
use crate::buffer::space;
use crate::error::{Error, Result};
use crate::os::{memory, process};

/// Who does the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workers {
    /// Threads of this process.
    Threads,
    /// Children of this process: one that is killed is an error, not the end.
    Children,
}

const EXTENT: u64 = 2 << 20;
/// How much is mapped at a time: the page tables of a window are given back before the next.
const WINDOW: u64 = 32 << 20;

/// What the workers tell: in memory that they share with the one who waits.
#[derive(Default)]
#[repr(C)]
struct Tally {
    done: AtomicU64,
    huge: AtomicU64,
}

/// Takes all `length` bytes (whole pages) of `fd` on `pages`, which must not be [`Pages::Auto`]; `strict` makes a
/// huge page that cannot be had an error. `progress` hears now and then how many bytes are done. Returns how many
/// bytes stand on huge pages.
///
/// # Errors
/// [`Error::NoSpace`] when pages ran out or a worker was killed; [`Error::Unsupported`] for a strict demand that
/// this kernel cannot meet.
pub fn populate(
    fd: BorrowedFd<'_>,
    length: u64,
    pages: Pages,
    strict: bool,
    workers: Workers,
    progress: &mut dyn FnMut(u64),
) -> Result<u64> {
    let slices = slices(length, pages);
    let outcome = match workers {
        Workers::Threads => by_threads(fd, &slices, pages, strict, progress),
        Workers::Children => by_children(fd, &slices, pages, strict, progress)?,
    };
    // What has been taken so far is still held, and counts as available.
    let taken = || nix::sys::stat::fstat(fd).map_or(0, |s| s.st_blocks as u64 * 512);
    outcome.map_err(|errno| explain(errno, length, pages, taken()))
}

fn explain(errno: i32, length: u64, pages: Pages, taken: u64) -> Error {
    let source = io::Error::from_raw_os_error(errno);
    let no_space = |limit: &memory::Limit| {
        space::no_space(length, space::available(limit).saturating_add(taken).min(length - 1), limit)
    };
    match (errno, pages) {
        // A collapse says so when a memory cgroup has no room for the huge page.
        (libc::EBUSY, Pages::Transparent) if space::available(&memory::tightest()) < EXTENT => {
            no_space(&memory::tightest())
        }
        (libc::EINVAL | libc::EAGAIN | libc::EBUSY, Pages::Transparent) => Error::Unsupported {
            what: "pages thp".into(),
            why: format!(
                "the kernel on {} did not collapse all of the memory into huge pages ({source}). Use --pages auto, \
                 which takes what can be had and says what it was",
                process::host_name()
            ),
        },
        (libc::ENOMEM | libc::EFAULT | libc::ENOSPC, Pages::Huge2M | Pages::Huge1G) => {
            space::check_huge(length, pages.size()).err().unwrap_or(Error::NoSpace {
                host: process::host_name(),
                asked: length,
                available: 0,
                limit: format!("the pool of reserved huge pages ({source})"),
                remedy: "somebody else took them meanwhile, or a hugetlb cgroup has a limit; try again, or use --pages auto".into(),
            })
        }
        (libc::ENOMEM | libc::ENOSPC | libc::EFAULT, _) => no_space(&memory::tightest()),
        _ => Error::Os { doing: format!("taking {} of memory", crate::error::Bytes(length)), source },
    }
}

/// One slice for each worker, cut at huge pages.
fn slices(length: u64, pages: Pages) -> Vec<(u64, u64)> {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get) as u64;
    let unit = pages.size().max(EXTENT);
    let each = length.div_ceil(cores.min(16)).next_multiple_of(unit);
    (0..).map(|i| i * each).take_while(|&at| at < length).map(|at| (at, each.min(length - at))).collect()
}

fn by_threads(
    fd: BorrowedFd<'_>,
    slices: &[(u64, u64)],
    pages: Pages,
    strict: bool,
    progress: &mut dyn FnMut(u64),
) -> std::result::Result<u64, i32> {
    let tally = Tally::default();
    std::thread::scope(|scope| {
        let workers: Vec<_> = slices
            .iter()
            .map(|&slice| {
                let tally = &tally;
                scope.spawn(move || work(fd.as_raw_fd(), slice, pages, strict, tally))
            })
            .collect();
        while workers.iter().any(|w| !w.is_finished()) {
            progress(tally.done.load(Ordering::Relaxed));
            std::thread::sleep(Duration::from_millis(2));
        }
        workers.into_iter().try_for_each(|w| w.join().unwrap_or(Err(libc::EIO)))
    })?;
    Ok(tally.huge.load(Ordering::Relaxed))
}

fn by_children(
    fd: BorrowedFd<'_>,
    slices: &[(u64, u64)],
    pages: Pages,
    strict: bool,
    progress: &mut dyn FnMut(u64),
) -> Result<std::result::Result<u64, i32>> {
    let tally = SharedTally::new()?;
    let parent = nix::unistd::getpid();
    let mut children: Vec<Pid> = Vec::new();
    for &slice in slices {
        // SAFETY: the child calls only what is safe after fork in a process with threads: system calls and atomics.
        match unsafe { fork() } {
            Ok(ForkResult::Parent { child }) => children.push(child),
            Ok(ForkResult::Child) => {
                let status = in_child(fd.as_raw_fd(), slice, pages, strict, &tally, parent);
                // SAFETY: _exit runs nothing of the parent's.
                unsafe { libc::_exit(status) }
            }
            Err(e) => {
                reap(&children);
                return Err(Error::os("starting a process that takes memory")(e));
            }
        }
    }
    let mut result = Ok(());
    let mut left = children;
    while !left.is_empty() {
        let mut running = Vec::new();
        for child in left {
            match waitpid(child, Some(WaitPidFlag::WNOHANG)) {
                Ok(WaitStatus::StillAlive) => running.push(child),
                Ok(WaitStatus::Exited(_, 0)) => {}
                Ok(WaitStatus::Exited(_, errno)) => result = result.and(Err(errno)),
                // The cgroup's answer, or the whole host's.
                Ok(WaitStatus::Signaled(..)) => result = result.and(Err(libc::ENOMEM)),
                Ok(_) | Err(nix::Error::EINTR) => running.push(child),
                Err(_) => result = result.and(Err(libc::ECHILD)),
            }
        }
        left = running;
        if result.is_err() {
            reap(&left);
            break;
        }
        progress(tally.get().done.load(Ordering::Relaxed));
        if !left.is_empty() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    Ok(result.map(|()| tally.get().huge.load(Ordering::Relaxed)))
}

fn reap(children: &[Pid]) {
    for &child in children {
        let _ = nix::sys::signal::kill(child, nix::sys::signal::Signal::SIGKILL);
        let _ = waitpid(child, None);
    }
}

fn in_child(fd: i32, slice: (u64, u64), pages: Pages, strict: bool, tally: &SharedTally, parent: Pid) -> i32 {
    // An orphan would take memory for nobody.
    if process::die_with_parent(libc::SIGKILL).is_err() || nix::unistd::getppid() != parent {
        return libc::ECHILD;
    }
    // The kernel's choice of whom to kill shall be this one. Without the file it chooses by itself.
    if let Ok(file) = nix::fcntl::open(
        "/proc/self/oom_score_adj",
        nix::fcntl::OFlag::O_WRONLY,
        nix::sys::stat::Mode::empty(),
    ) {
        let _ = nix::unistd::write(&file, b"1000");
    }
    work(fd, slice, pages, strict, tally.get()).err().unwrap_or(0)
}

/// A [`Tally`] that children share.
struct SharedTally(*mut Tally);

impl SharedTally {
    fn new() -> Result<SharedTally> {
        // SAFETY: a new anonymous mapping.
        let at = unsafe {
            let (rw, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
            libc::mmap(std::ptr::null_mut(), size_of::<Tally>(), rw, flags, -1, 0)
        };
        if at == libc::MAP_FAILED {
            return Err(Error::os("mapping a page")(io::Error::last_os_error()));
        }
        Ok(SharedTally(at.cast()))
    }

    fn get(&self) -> &Tally {
        // SAFETY: mapped until drop, zeroed by the kernel, atomics only.
        unsafe { &*self.0 }
    }
}

impl Drop for SharedTally {
    fn drop(&mut self) {
        // SAFETY: new() mapped it; the children have their own.
        unsafe { libc::munmap(self.0.cast(), size_of::<Tally>()) };
    }
}

/// The errno for a mapping that failed: for want of addresses, and not of memory, ENOMEM becomes a number of our own.
fn no_addresses() -> i32 {
    match nix::errno::Errno::last_raw() {
        libc::ENOMEM => NO_ADDRESSES,
        errno => errno,
    }
}

const NO_ADDRESSES: i32 = libc::EOVERFLOW;

/// A part of a file, mapped at a multiple of 2 MiB.
struct Window {
    area: *mut libc::c_void,
    area_length: usize,
    at: *mut libc::c_void,
}

impl Window {
    fn map(fd: i32, offset: u64, length: u64, align: u64) -> std::result::Result<Window, i32> {
        let (length, align) = (length as usize, align as usize);
        let area_length = length + align;
        // SAFETY: a new private mapping without access, only to find aligned room.
        let area = unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
            libc::mmap(std::ptr::null_mut(), area_length, libc::PROT_NONE, flags, -1, 0)
        };
        if area == libc::MAP_FAILED {
            return Err(no_addresses());
        }
        let aligned = (area as usize).next_multiple_of(align) as *mut libc::c_void;
        let mut window = Window { area, area_length, at: aligned };
        // SAFETY: over the area just made, which nobody else knows.
        window.at = unsafe {
            let (rw, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_FIXED);
            libc::mmap(aligned, length, rw, flags, fd, offset as libc::off_t)
        };
        if window.at == libc::MAP_FAILED { Err(no_addresses()) } else { Ok(window) }
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        // SAFETY: map() made this area and handed out nothing of it.
        unsafe { libc::munmap(self.area, self.area_length) };
    }
}

/// Takes one slice. No allocation, no lock: it runs after fork.
fn work(
    fd: i32,
    slice: (u64, u64),
    pages: Pages,
    strict: bool,
    tally: &Tally,
) -> std::result::Result<(), i32> {
    let (mut at, end) = (slice.0, slice.0 + slice.1);
    let align = pages.size().max(EXTENT);
    while at < end {
        let length = WINDOW.max(pages.size()).min(end - at);
        let window = Window::map(fd, at, length, align)?;
        if pages == Pages::Transparent {
            collapse(&window, length, strict, tally)?;
        } else {
            take(fd, window.at, at, length)?;
            if pages != Pages::Small {
                tally.huge.fetch_add(length, Ordering::Relaxed);
            }
            tally.done.fetch_add(length, Ordering::Relaxed);
        }
        at += length;
    }
    Ok(())
}

const MADV_COLLAPSE: i32 = 25;

/// Takes a window on transparent huge pages: one small page in each extent, then the kernel makes a huge one of it.
/// That works on memory files whatever `shmem_enabled` says.
fn collapse(window: &Window, length: u64, strict: bool, tally: &Tally) -> std::result::Result<(), i32> {
    let advise = |at: *mut libc::c_void, length: u64, advice| {
        // SAFETY: inside the window, which is this function's alone; none of the advices discards anything.
        if unsafe { libc::madvise(at, length as usize, advice) } == 0 {
            Ok(())
        } else {
            Err(nix::errno::Errno::last_raw())
        }
    };
    // Where the kernel allows it this alone makes the first touch take a huge page.
    let _ = advise(window.at, length, libc::MADV_HUGEPAGE);
    let whole = length / EXTENT * EXTENT;
    for at in (0..whole).step_by(EXTENT as usize) {
        advise(window.at.wrapping_byte_add(at as usize), memory_page(), libc::MADV_POPULATE_WRITE)?;
    }
    if whole < length {
        advise(window.at.wrapping_byte_add(whole as usize), length - whole, libc::MADV_POPULATE_WRITE)?;
    }
    // One call for all extents: each call drains the page lists of every core, and waits for that.
    if whole > 0 && advise(window.at, whole, MADV_COLLAPSE).is_ok() {
        tally.huge.fetch_add(whole, Ordering::Relaxed);
        tally.done.fetch_add(length, Ordering::Relaxed);
        return Ok(());
    }
    // Some could not be had; find out which.
    for at in (0..whole).step_by(EXTENT as usize) {
        let here = window.at.wrapping_byte_add(at as usize);
        let mut tries = 0;
        let collapsed = loop {
            tries += 1;
            match advise(here, EXTENT, MADV_COLLAPSE) {
                Ok(()) => break true,
                // Transient: pages are isolated for a moment.
                Err(libc::EAGAIN | libc::EBUSY) if tries < 10 => {}
                Err(errno) if strict => return Err(errno),
                Err(_) => break false,
            }
        };
        if collapsed {
            tally.huge.fetch_add(EXTENT, Ordering::Relaxed);
        } else {
            advise(here, EXTENT, libc::MADV_POPULATE_WRITE)?;
        }
        tally.done.fetch_add(EXTENT, Ordering::Relaxed);
    }
    tally.done.fetch_add(length - whole, Ordering::Relaxed);
    Ok(())
}

fn memory_page() -> u64 {
    // SAFETY: sysconf reads a constant.
    (unsafe { libc::sysconf(libc::_SC_PAGESIZE) }) as u64
}

fn take(fd: i32, at: *mut libc::c_void, offset: u64, length: u64) -> std::result::Result<(), i32> {
    // SAFETY: inside the caller's window; populating discards nothing.
    while unsafe { libc::madvise(at, length as usize, libc::MADV_POPULATE_WRITE) } != 0 {
        match nix::errno::Errno::last_raw() {
            libc::EINTR | libc::EAGAIN => {}
            // Linux before 5.14 has no such advice; fallocate is slower, and as good.
            libc::EINVAL => {
                // SAFETY: takes no memory of ours.
                if unsafe { libc::fallocate(fd, 0, offset as libc::off_t, length as libc::off_t) } == 0 {
                    return Ok(());
                }
                return Err(nix::errno::Errno::last_raw());
            }
            errno => return Err(errno),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::memfd::{self, Backing};
    use std::os::fd::AsFd;

    fn resident(fd: BorrowedFd<'_>) -> u64 {
        nix::sys::stat::fstat(fd).unwrap().st_blocks as u64 * 512
    }

    #[test]
    fn takes_every_page_both_ways() {
        for workers in [Workers::Threads, Workers::Children] {
            for (length, pages) in
                [(4096 * 3, Pages::Small), (5 << 20, Pages::Small), (6 << 20, Pages::Transparent)]
            {
                let fd = memfd::create("hostbuf-test", length, Backing::Shmem).unwrap();
                let mut last = 0;
                let huge =
                    populate(fd.as_fd(), length, pages, false, workers, &mut |done| last = done).unwrap();
                assert_eq!(resident(fd.as_fd()), length, "{workers:?} {pages}");
                assert!(huge <= length && last <= length);
                if pages == Pages::Small {
                    assert_eq!(huge, 0);
                }
            }
        }
    }

    #[test]
    fn slices_cover_everything_once() {
        for length in [4096, 2 << 20, (1 << 30) + 4096, 10 << 30] {
            for pages in [Pages::Small, Pages::Huge2M, Pages::Huge1G] {
                let mut at = 0;
                for (start, bytes) in slices(length, pages) {
                    assert_eq!(start, at);
                    at += bytes;
                }
                assert_eq!(at, length);
            }
        }
    }
}
