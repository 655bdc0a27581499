//! The cost that the monitor adds to munmap, and its lower bound: a thread that only reads the
//! kernel's events, and either sleeps between them or polls.

#![allow(unsafe_code, reason = "maps memory and watches it by system calls")]

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Instant;

use hostbuf::register::Access;

use crate::chain::PAGE;
use crate::fixture::BenchCache;
use crate::fixture::BenchResult;
use crate::sample::{median, note, sample};

/// The length of one munmap, and the number of them that remove a mapping piece by piece.
const PIECE: usize = 4 * PAGE;
const PIECES: usize = 256;
const LENGTH: usize = PIECES * PIECE;

/// The way in which a bare reader of events waits.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Reader {
    /// Sleeps in the kernel until an event arrives.
    Asleep,
    /// Polls.
    Awake,
}

/// Prints the rows `key`, and `key-asleep` or `key-awake`: the cost of the monitor, and that of
/// each of the bare `readers`, in turns.
pub(crate) fn unmapping(key: &str, readers: &[Reader], cache: &BenchCache, repeats: usize) -> BenchResult {
    let mut ours = Vec::new();
    let mut theirs = vec![Vec::new(); readers.len()];
    for _ in 0..repeats {
        let plain = unmap(map());
        let at = map();
        drop(cache.get(at, LENGTH, Access::READ)?);
        ours.extend(added(unmap(at), &plain));
        for (&reader, theirs) in readers.iter().zip(&mut theirs) {
            theirs.extend(bare(&plain, reader)?);
        }
    }
    ours.sort_by(f64::total_cmp);
    sample(key, "ours", median(&ours));
    sample(key, "theirs", 10e-6);
    for (reader, theirs) in readers.iter().zip(&theirs) {
        let key = format!("{key}-{}", format!("{reader:?}").to_lowercase());
        sample(&key, "ours", median(&ours));
        sample(&key, "theirs", median(theirs));
    }
    let at = |share: usize| ours[ours.len() * share / 1000] * 1e6;
    note(key, &format!("p99 {:.1} µs, p99.9 {:.1} µs of {}", at(990), at(999), ours.len()));
    Ok(())
}

fn map() -> *mut u8 {
    // SAFETY: new memory, touched once.
    unsafe {
        let (rw, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        let at = libc::mmap(std::ptr::null_mut(), LENGTH, rw, flags, -1, 0).cast::<u8>();
        (0..PIECES).for_each(|piece| at.byte_add(piece * PIECE).write(1));
        at
    }
}

/// Unmaps piece by piece from the end, and returns the duration of each call.
fn unmap(at: *mut u8) -> Vec<f64> {
    let piece = |piece: usize| {
        let begun = Instant::now();
        // SAFETY: mapped by `map`, used by nobody.
        unsafe { libc::munmap(at.byte_add(piece * PIECE).cast(), PIECE) };
        begun.elapsed().as_secs_f64()
    };
    (0..PIECES).rev().map(piece).collect()
}

fn added(watched: Vec<f64>, plain: &[f64]) -> Vec<f64> {
    watched.iter().zip(plain).map(|(watched, plain)| watched - plain).collect()
}

/// Measures the cost of userfaultfd alone: the kernel's own wait, and a thread that reads events
/// and discards them.
fn bare(plain: &[f64], how: Reader) -> Result<Vec<f64>, Box<dyn std::error::Error>> {
    const API: [u64; 2] = [0xc018_aa3f, 0xaa];
    const REGISTER: [u64; 2] = [0xc020_aa00, 2];
    const UNMAPPING: u64 = 1 | 1 << 6;
    // A blocking read of the descriptor is the cheapest sleep; the last event ends it.
    let flags = match how {
        Reader::Asleep => libc::O_CLOEXEC,
        Reader::Awake => libc::O_CLOEXEC | libc::O_NONBLOCK,
    };
    // SAFETY: no memory is passed.
    let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, flags | 1) };
    if fd < 0 {
        return Err(std::io::Error::last_os_error().into());
    }
    // SAFETY: a new descriptor.
    let fd = unsafe { OwnedFd::from_raw_fd(fd as i32) };
    let control = |request: u64, mut words: [u64; 4]| {
        // SAFETY: each request reads and writes at most this number of words.
        match unsafe { libc::ioctl(fd.as_raw_fd(), request, words.as_mut_ptr()) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        }
    };
    control(API[0], [API[1], UNMAPPING, 0, 0])?;
    let at = map();
    control(REGISTER[0], [at as u64, LENGTH as u64, REGISTER[1], 0])?;
    let watched = std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut messages = [0u64; 4];
            let mut left = PIECES;
            while left > 0 {
                let size = size_of_val(&messages);
                // SAFETY: as many bytes as there are.
                let n = unsafe { libc::read(fd.as_raw_fd(), messages.as_mut_ptr().cast(), size) };
                left -= usize::from(n > 0);
            }
        });
        unmap(at)
    });
    Ok(added(watched, plain))
}
