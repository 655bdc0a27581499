//! Serialised retries of registrations: a process whose registration the driver refused retries it
//! while no other process of the same user on the host does.
//!
//! Some drivers refuse pages that another process is registering, which happens when all ranks of a
//! host register one buffer. The first attempt is not serialised, since that would cost every
//! registration two system calls.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use crate::span::Span;
use hostbuf_os::{maps, process, socket};

/// The time to wait for the lock. Another process may hold it for as long as it registers, which
/// took 4.5 s for 66 GiB.
const LOCK_TIMEOUT: Duration = Duration::from_secs(60);
/// The first pause between two tries; each further pause is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
/// The number of attempts while a process holds the lock. More than one is needed, since the first
/// attempt of another process is made without the lock and may still conflict.
const TRIES: u32 = 8;

/// Returns whether a part of `span` is memory that another process can have mapped too. Only
/// registrations of such memory can conflict.
pub(super) fn is_shared(span: Span) -> bool {
    let mut shared = false;
    // Without /proc the memory counts as private, and nothing is retried.
    let _ = maps::each(|mapped| {
        shared |= mapped.end > span.start() && mapped.start < span.end() && !mapped.private;
        mapped.end < span.end() && !shared
    });
    shared
}

/// The lock that one process of this user on this host holds: an abstract socket name, which only
/// one socket can have, and which the kernel releases with the process.
struct RetryLock {
    _name: Option<OwnedFd>,
}

impl RetryLock {
    /// Waits for the lock. Continues without it after [`LOCK_TIMEOUT`], or if sockets are not
    /// available.
    fn wait() -> RetryLock {
        let name = format!("hostbuf-cuda-turn-{}", nix::unistd::geteuid());
        let (begun, mut pause) = (Instant::now(), FIRST_PAUSE);
        loop {
            match socket::listen_on(&name) {
                Ok(socket) => return RetryLock { _name: Some(socket) },
                Err(error)
                    if error.raw_os_error() == Some(libc::EADDRINUSE) && begun.elapsed() < LOCK_TIMEOUT => {}
                Err(error) => {
                    tracing::warn!(%error, host = process::host_name(), "retrying a registration with CUDA without the lock against other processes");
                    return RetryLock { _name: None };
                }
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(16));
        }
    }
}

/// Calls `attempt` until it succeeds, fails with an error for which `may_pass` is false, or has
/// failed [`TRIES`] times, while no other process of this user on this host does so. Returns the
/// last result.
pub(super) fn retry<T, E>(
    mut attempt: impl FnMut() -> Result<T, E>,
    may_pass: impl Fn(&E) -> bool,
) -> Result<T, E> {
    let _lock = RetryLock::wait();
    let mut pause = FIRST_PAUSE;
    for _ in 1..TRIES {
        match attempt() {
            Err(error) if may_pass(&error) => {}
            result => return result,
        }
        std::thread::sleep(pause);
        pause *= 2;
    }
    attempt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_end_with_success_or_a_lasting_error() {
        let mut tries = 0;
        let second = || {
            tries += 1;
            if tries == 2 { Ok(tries) } else { Err(()) }
        };
        assert_eq!(retry(second, |()| true), Ok(2));
        let mut tries = 0;
        let never = || -> Result<(), ()> {
            tries += 1;
            Err(())
        };
        assert_eq!(retry(never, |()| false), Err(()));
        assert_eq!(tries, 1);
    }
}
