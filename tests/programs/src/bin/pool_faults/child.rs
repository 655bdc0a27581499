//! Processes that the rounds start and kill.

use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use crate::broken_promise::BrokenPromise;

/// A process with a role, which ends with this object.
#[derive(Debug)]
pub(crate) struct RoleProcess {
    child: Child,
    pub(crate) input: ChildStdin,
    pub(crate) output: ChildStdout,
}

impl RoleProcess {
    /// Starts this program with a role.
    pub(crate) fn start(role: &str, arguments: &[&str]) -> Result<RoleProcess, BrokenPromise> {
        let own = std::env::current_exe().map_err(|error| error.to_string())?;
        let mut command = Command::new(own);
        command.arg("victim").arg(role).args(arguments);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(|error| format!("starting a {role}: {error}"))?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let (Some(input), Some(output)) = (input, output) else { return Err("no pipes".into()) };
        Ok(RoleProcess { child, input, output })
    }

    /// Waits for the byte by which the process says that it has begun.
    pub(crate) fn wait_ready(&mut self) -> Result<(), BrokenPromise> {
        self.output.read_exact(&mut [0]).map_err(|error| format!("a process has not begun: {error}"))
    }

    /// Sends bytes. A process that has ended gets nothing.
    pub(crate) fn send(&mut self, bytes: &[u8]) -> bool {
        self.input.write_all(bytes).is_ok()
    }

    /// Returns the process id.
    pub(crate) fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    /// Sends a signal.
    pub(crate) fn signal(&self, signal: nix::sys::signal::Signal) {
        // It fails only if the process has ended, which the wait shows.
        let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(self.pid()), signal);
    }

    /// Kills the process and waits for its end. A process that has failed before is a failure.
    pub(crate) fn kill(&mut self) -> Result<(), BrokenPromise> {
        self.signal(nix::sys::signal::Signal::SIGKILL);
        let status = self.child.wait().map_err(|error| error.to_string())?;
        match status.signal() {
            Some(libc::SIGKILL) => Ok(()),
            _ => Err(format!("a process has ended by itself: {status}")),
        }
    }
}

impl Drop for RoleProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits until `condition` holds, and returns the time that it took.
pub(crate) fn eventually(what: &str, mut condition: impl FnMut() -> bool) -> Result<Duration, BrokenPromise> {
    const LIMIT: Duration = Duration::from_secs(30);
    let begun = Instant::now();
    while !condition() {
        if begun.elapsed() > LIMIT {
            return Err(format!("not within {} s: {what}", LIMIT.as_secs()));
        }
        std::thread::sleep(Duration::from_micros(100));
    }
    Ok(begun.elapsed())
}
