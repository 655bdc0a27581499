//! What the monitor adds to munmap, and what no monitor could save: the same with a thread that does nothing but read the
//! kernel's messages, and never sleeps.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use hostbuf::register::Access;

use crate::Outcome;
use crate::cache::Cache;
use crate::chain::PAGE;
use crate::sample::{median, note, sample};

/// One munmap, and how many of them, one after the other, take a mapping away.
const PIECE: usize = 4 * PAGE;
const PIECES: usize = 256;
const LENGTH: usize = PIECES * PIECE;

/// Rows `key` and, with `-floor`, what both ways add, in turns.
pub(crate) fn unmapping(key: &str, cache: &Cache, repeats: usize) -> Outcome {
    let (mut ours, mut least) = (Vec::new(), Vec::new());
    for _ in 0..repeats {
        let plain = unmap(map());
        let at = map();
        drop(cache.get(at, LENGTH, Access::READ)?);
        ours.extend(added(unmap(at), &plain));
        least.extend(bare(&plain)?);
    }
    ours.sort_by(f64::total_cmp);
    let floor = format!("{key}-floor");
    sample(key, "ours", median(&ours));
    sample(key, "theirs", 10e-6);
    sample(&floor, "ours", median(&ours));
    sample(&floor, "theirs", median(&least));
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

/// Piece by piece, from the end: how long each takes.
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

/// The least that watching takes: the kernel's own wait, and a thread on another core that reads at once.
fn bare(plain: &[f64]) -> Result<Vec<f64>, Box<dyn std::error::Error>> {
    const API: [u64; 2] = [0xc018_aa3f, 0xaa];
    const REGISTER: [u64; 2] = [0xc020_aa00, 2];
    const UNMAPPING: u64 = 1 | 1 << 6;
    // SAFETY: no memory is passed.
    let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | libc::O_NONBLOCK | 1) };
    if fd < 0 {
        return Err(std::io::Error::last_os_error().into());
    }
    // SAFETY: a new descriptor.
    let fd = unsafe { OwnedFd::from_raw_fd(fd as i32) };
    let control = |request: u64, mut words: [u64; 4]| {
        // SAFETY: each request reads and writes at most so many words.
        match unsafe { libc::ioctl(fd.as_raw_fd(), request, words.as_mut_ptr()) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        }
    };
    control(API[0], [API[1], UNMAPPING, 0, 0])?;
    let stop = &AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut messages = [0u64; 128];
            while !stop.load(Ordering::Relaxed) {
                // SAFETY: as many bytes as there are.
                unsafe { libc::read(fd.as_raw_fd(), messages.as_mut_ptr().cast(), size_of_val(&messages)) };
            }
        });
        let at = map();
        let outcome = control(REGISTER[0], [at as u64, LENGTH as u64, REGISTER[1], 0])
            .map(|()| added(unmap(at), plain));
        stop.store(true, Ordering::Relaxed);
        Ok(outcome?)
    })
}
