//! Taking turns: a process whose registration the driver refused tries again while no other process of the host does.
//!
//! Some drivers refuse pages that another process registers at the same moment. The ranks of a host that register one buffer
//! all at once meet there. A first try takes no turn, since taking one would cost every registration two system calls.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use crate::os::{maps, process, socket};
use crate::span::Span;

/// The time to wait for a turn. Another process may hold one for as long as it registers, which took 4.5 s for 66 GiB.
const PATIENCE: Duration = Duration::from_secs(60);
/// The first pause between two tries; each further pause is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
/// The number of times that a process tries while it has the turn: a process that makes its first try takes none, and may be in the way.
const TRIES: u32 = 8;

/// Returns whether any of `span` is memory that another process can have mapped too. Only there can processes meet.
pub(super) fn is_shared(span: Span) -> bool {
    let mut shared = false;
    // Without /proc nothing is known, and nothing is tried again.
    let _ = maps::each(|mapped| {
        shared |= mapped.end > span.start() && mapped.start < span.end() && !mapped.private;
        mapped.end < span.end() && !shared
    });
    shared
}

/// The turn of one process of this user on this host. An abstract socket name, which only one socket can have, and which goes
/// with the process.
struct Turn {
    _name: Option<OwnedFd>,
}

impl Turn {
    /// Waits for the turn. After [`PATIENCE`], or where there are no sockets, goes on without one.
    fn wait() -> Turn {
        let name = format!("hostbuf-cuda-turn-{}", nix::unistd::geteuid());
        let (begun, mut pause) = (Instant::now(), FIRST_PAUSE);
        loop {
            match socket::listen_on(&name) {
                Ok(socket) => return Turn { _name: Some(socket) },
                Err(error)
                    if error.raw_os_error() == Some(libc::EADDRINUSE) && begun.elapsed() < PATIENCE => {}
                Err(error) => {
                    tracing::warn!(%error, host = process::host_name(), "registering with CUDA without taking turns");
                    return Turn { _name: None };
                }
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(16));
        }
    }
}

/// Calls `attempt` until it succeeds, fails with an error for which `may_pass` is false, or has failed [`TRIES`] times, while
/// no other process of this user on this host does the same. Returns the last result.
pub(super) fn take<T, E>(
    mut attempt: impl FnMut() -> Result<T, E>,
    may_pass: impl Fn(&E) -> bool,
) -> Result<T, E> {
    let _turn = Turn::wait();
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
    fn it_tries_until_it_succeeds_or_may_not_try_again() {
        let mut tries = 0;
        let second = || {
            tries += 1;
            if tries == 2 { Ok(tries) } else { Err(()) }
        };
        assert_eq!(take(second, |()| true), Ok(2));
        let mut tries = 0;
        let never = || -> Result<(), ()> {
            tries += 1;
            Err(())
        };
        assert_eq!(take(never, |()| false), Err(()));
        assert_eq!(tries, 1);
    }
}
