//! Children that are stopped.

use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::Pid;

/// Stops a child of this process, and waits until none of its threads runs. The signal alone stops
/// only the first thread that sees it, which then stops the others.
pub fn stop_child(pid: u32) {
    let pid = Pid::from_raw(pid as i32);
    kill(pid, Signal::SIGSTOP).expect("it runs");
    waitid(Id::Pid(pid), WaitPidFlag::WSTOPPED).expect("it is a child");
}
