//! Processes that the rounds start and kill.

use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use crate::broken_promise::BrokenPromise;

/// A process with a role, which ends with this object.
#[derive(Debug)]
pub(crate) struct RoleProcess {
    child: Child,
    /// The standard input, until this process closes it.
    input: Option<ChildStdin>,
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
        let Some(output) = output else { return Err("no pipe".into()) };
        Ok(RoleProcess { child, input, output })
    }

    /// Waits for the byte by which the process says that it has begun.
    pub(crate) fn wait_ready(&mut self) -> Result<(), BrokenPromise> {
        self.output.read_exact(&mut [0]).map_err(|error| format!("a process has not begun: {error}"))
    }

    /// Sends bytes. A process that has ended gets nothing.
    pub(crate) fn send(&mut self, bytes: &[u8]) -> bool {
        self.input.as_mut().is_some_and(|input| input.write_all(bytes).is_ok())
    }

    /// Receives exactly as many bytes as `bytes` has.
    pub(crate) fn receive(&mut self, bytes: &mut [u8]) -> Result<(), BrokenPromise> {
        self.output.read_exact(bytes).map_err(|error| format!("a process has not answered: {error}"))
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

    /// Stops the process, and waits until it has stopped.
    pub(crate) fn stop(&self) -> Result<(), BrokenPromise> {
        use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
        self.signal(nix::sys::signal::Signal::SIGSTOP);
        match waitpid(nix::unistd::Pid::from_raw(self.pid()), Some(WaitPidFlag::WUNTRACED)) {
            Ok(WaitStatus::Stopped(..)) => Ok(()),
            other => Err(format!("a process has not stopped: {other:?}")),
        }
    }

    /// Lets a stopped process continue.
    pub(crate) fn resume(&self) {
        self.signal(nix::sys::signal::Signal::SIGCONT);
    }

    /// Closes the input of the process, and waits for its end, which must be a success.
    pub(crate) fn end(&mut self) -> Result<(), BrokenPromise> {
        let status = self.wait()?;
        if status.success() { Ok(()) } else { Err(format!("a process has failed: {status}")) }
    }

    /// Closes the input of the process, waits for its end, and returns its status.
    pub(crate) fn wait(&mut self) -> Result<ExitStatus, BrokenPromise> {
        self.input = None;
        self.child.wait().map_err(|error| error.to_string())
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
