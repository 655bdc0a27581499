//! Counts of system calls.

use nix::sys::ptrace::{self, Options};
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;

/// Makes the parent of this process its tracer, and runs `run` so that
/// [`count`] in the parent counts the system calls of this thread in it.
pub(crate) fn run_counted<T>(run: impl FnOnce() -> T) -> Result<T, String> {
    let mark = || nix::sys::signal::raise(Signal::SIGSTOP).map_err(|errno| errno.to_string());
    ptrace::traceme().map_err(|errno| format!("ptrace: {errno}"))?;
    // The first two marks count the calls of a mark.
    mark()?;
    mark()?;
    let result = run();
    mark()?;
    Ok(result)
}

/// Returns the number of system calls of the child `process` in [`run_counted`], and lets the
/// process go on.
pub(crate) fn count(process: u32) -> Result<u64, String> {
    let process = Pid::from_raw(process.cast_signed());
    let failed = |errno: nix::Error| format!("ptrace: {errno}");
    let own = count_until_mark(process)?;
    if own != 0 {
        return Err("a traced process has begun twice".into());
    }
    ptrace::setoptions(process, Options::PTRACE_O_TRACESYSGOOD).map_err(failed)?;
    let mut stops = [0; 2];
    for stops in &mut stops {
        ptrace::syscall(process, None).map_err(failed)?;
        *stops = count_until_mark(process)?;
    }
    ptrace::detach(process, None).map_err(failed)?;
    let [mark, run] = stops;
    // A call stops twice: at its begin and at its end.
    Ok((run - mark.min(run)) / 2)
}

/// Returns the number of stops of a process at system calls, until it stops at a mark.
fn count_until_mark(process: Pid) -> Result<u64, String> {
    let mut stops = 0;
    loop {
        match waitpid(process, None).map_err(|errno| format!("ptrace: {errno}"))? {
            WaitStatus::Stopped(_, Signal::SIGSTOP) => return Ok(stops),
            WaitStatus::PtraceSyscall(_) => stops += 1,
            WaitStatus::Stopped(_, other) => {
                ptrace::syscall(process, other).map_err(|errno| format!("ptrace: {errno}"))?;
                continue;
            }
            other => return Err(format!("a traced process has ended: {other:?}")),
        }
        ptrace::syscall(process, None).map_err(|errno| format!("ptrace: {errno}"))?;
    }
}
