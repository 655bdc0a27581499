//! Checks that may crash, hang, or change the process, made in a child process.

#![allow(unsafe_code, reason = "forks a child for each check that may crash")]

use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork};

/// Returns the result of `look` in a child of this process.
///
/// # Errors
/// The reason why there is no result within `timeout`, as a clause.
pub fn ask(timeout: Duration, look: impl FnOnce() -> String) -> Result<String, String> {
    let (mut from, mut to) = std::io::pipe().map_err(|e| format!("no pipe: {e}"))?;
    // SAFETY: this program has one thread here, so the child has a consistent state (with several
    // threads, as in tests, the C library keeps its allocator consistent). The child ends by _exit.
    let child = match unsafe { fork() }.map_err(|e| format!("no child: {e}"))? {
        ForkResult::Child => {
            drop(from);
            silence();
            let said = to.write_all(look().as_bytes());
            // SAFETY: ends the child at once, without the exit handlers of the parent.
            unsafe { libc::_exit(i32::from(said.is_err())) }
        }
        ForkResult::Parent { child } => child,
    };
    drop(to);
    let deadline = Instant::now() + timeout;
    let mut said = Vec::new();
    let answer = loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let mut fds = [PollFd::new(from.as_fd(), PollFlags::POLLIN)];
        match poll(&mut fds, PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX)) {
            Ok(0) => break Err(format!("no answer within {} s", timeout.as_secs())),
            Ok(_) => {}
            Err(nix::Error::EINTR) => continue,
            Err(e) => break Err(e.to_string()),
        }
        let mut piece = [0u8; 4096];
        match from.read(&mut piece) {
            Ok(0) => break Ok(()),
            Ok(n) => said.extend_from_slice(&piece[..n]),
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) => break Err(e.to_string()),
        }
    };
    if answer.is_err() {
        let _ = kill(child, Signal::SIGKILL);
    }
    let ended = waitpid(child, None);
    answer?;
    if said.is_empty() {
        return Err(match ended {
            Ok(WaitStatus::Signaled(_, Signal::SIGSYS, _)) => {
                "it was ended by SIGSYS: a seccomp filter forbids one of its system calls".into()
            }
            Ok(WaitStatus::Signaled(_, signal, _)) => format!("it crashed ({signal})"),
            _ => "it crashed".into(),
        });
    }
    Ok(String::from_utf8_lossy(&said).into_owned())
}

/// Discards the output of libraries that are loaded only for a check.
fn silence() {
    if let Ok(null) = std::fs::OpenOptions::new().write(true).open("/dev/null") {
        let _ = nix::unistd::dup2_stdout(&null);
        let _ = nix::unistd::dup2_stderr(&null);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_that_answers_crashes_or_hangs_is_reported() {
        let timeout = Duration::from_secs(20);
        assert_eq!(ask(timeout, || "yes".into()), Ok("yes".into()));
        assert_eq!(ask(timeout, || std::process::abort()), Err("it crashed (SIGABRT)".into()));
        let killed = || {
            let _ = nix::sys::signal::raise(Signal::SIGSYS);
            String::new()
        };
        assert!(ask(timeout, killed).unwrap_err().contains("SIGSYS"));
        let hangs = || loop {
            nix::unistd::pause();
        };
        assert!(ask(Duration::from_millis(20), hangs).unwrap_err().contains("no answer"));
    }
}
