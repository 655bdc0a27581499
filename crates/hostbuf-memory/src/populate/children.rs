//! Workers that are children of this process: if one is killed, populating fails, but this process
//! continues.

#![allow(unsafe_code, reason = "forks children that populate")]

use std::io;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, fork};

use crate::error::{Error, Result};
use crate::populate::fork_shared::ForkShared;
use crate::populate::view::FileView;
use crate::populate::work::{PopulateMethod, Tally, Task, WorkerFailure};
use hostbuf_os::array::Zero;
use hostbuf_os::cores::Cores;
use hostbuf_os::{memory, process};

/// Populates the range of `task`. Returns the number of bytes on huge pages, or the failure of a
/// worker. The outer error means that the workers could not be started.
pub(super) fn run(
    task: Task,
    cores: &Cores,
    progress: &mut dyn FnMut(u64),
) -> Result<std::result::Result<u64, WorkerFailure>> {
    let shared = ForkShared::<Tally>::new(1)?;
    let tally = &shared[0];
    // This process only waits, so one of the workers may use its core.
    let first = cores.spread(task.workers(cores.threads()));
    let in_child = |worker: usize| {
        cores.begin_at(&first[worker]);
        let method = if worker == 0 { PopulateMethod::Write } else { PopulateMethod::Fault };
        // Each window is mapped separately: if memory is tight, page tables for more may not fit.
        let view = |at, length| FileView::map(task.fd, at, length, task.pages).map(|view| (view, 0));
        task.work(tally, task.end(), method, view, &mut || {}).err().unwrap_or(0)
    };
    let report = &mut || progress(tally.done.load(Ordering::Relaxed));
    let ended = supervise(first.len(), in_child, report)?;
    Ok(ended.map(|()| tally.huge.load(Ordering::Relaxed)).map_err(|(_, failure)| failure))
}

/// Starts `count` children, each of which runs `in_child` with its number and ends with the errno
/// that it returns, 0 for success. Waits for all of them; after a failure, ends the others. Returns
/// the failure with the number of its child. The outer error means that a child could not be
/// started.
pub(super) fn supervise(
    count: usize,
    in_child: impl Fn(usize) -> i32,
    report: &mut dyn FnMut(),
) -> Result<std::result::Result<(), (usize, WorkerFailure)>> {
    let oom_kills = memory::oom_kills();
    let outcomes = ForkShared::<ChildResult>::new(count)?;
    let parent = nix::unistd::getpid();
    let mut children: Vec<(usize, Pid)> = Vec::new();
    for number in 0..count {
        // SAFETY: the child only does what is safe after a fork in a process with threads: system
        // calls and atomics.
        match unsafe { fork() } {
            Ok(ForkResult::Parent { child }) => children.push((number, child)),
            Ok(ForkResult::Child) => {
                let status = prepare(parent).map_or_else(|errno| errno, |()| in_child(number));
                outcomes[number].0.store(status + 1, Ordering::Release);
                // SAFETY: _exit runs no exit handler of the parent.
                unsafe { libc::_exit(status) }
            }
            Err(e) => {
                reap(&children);
                let source = io::Error::from(e);
                let remedy = process::start_remedy(&source);
                return Err(Error::Os {
                    doing: format!("starting a process that populates memory{remedy}"),
                    source,
                });
            }
        }
    }
    let mut result = Ok(());
    let mut left = children;
    while !left.is_empty() {
        let mut running = Vec::new();
        for (number, child) in left {
            let mut fail = |failure: WorkerFailure| {
                if result.is_ok() {
                    result = Err((number, failure));
                }
            };
            match waitpid(child, Some(WaitPidFlag::WNOHANG)) {
                Ok(WaitStatus::StillAlive) => running.push((number, child)),
                Ok(WaitStatus::Exited(_, 0)) => {}
                Ok(WaitStatus::Exited(_, errno)) => fail(errno.into()),
                Ok(WaitStatus::Signaled(child, signal, _)) => {
                    // The kernel counts before it sends the signal. It may hide the count.
                    let for_memory = signal == Signal::SIGKILL
                        && (oom_kills.is_none() || memory::oom_kills() != oom_kills);
                    fail(WorkerFailure::Ended { pid: child.as_raw(), signal: signal as i32, for_memory });
                }
                Ok(_) | Err(nix::Error::EINTR) => running.push((number, child)),
                // The program ignores SIGCHLD, or waits for any child: the status is lost.
                Err(_) => match outcomes[number].0.load(Ordering::Acquire) {
                    0 if oom_kills.is_some() && memory::oom_kills() != oom_kills => {
                        let (pid, signal) = (child.as_raw(), libc::SIGKILL);
                        fail(WorkerFailure::Ended { pid, signal, for_memory: true });
                    }
                    0 => fail(libc::ECHILD.into()),
                    1 => {}
                    errno => fail((errno - 1).into()),
                },
            }
        }
        left = running;
        if result.is_err() {
            reap(&left);
            break;
        }
        report();
        if !left.is_empty() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    Ok(result)
}

/// The result of a child: 1 more than its errno, 0 before it ends by itself.
#[derive(Default)]
#[repr(transparent)]
struct ChildResult(AtomicI32);

// SAFETY: zero is a valid value of an atomic.
unsafe impl Zero for ChildResult {}

fn reap(children: &[(usize, Pid)]) {
    for &(_, child) in children {
        let _ = kill(child, Signal::SIGKILL);
        let _ = waitpid(child, None);
    }
}

/// Prepares a child of `parent` for its work. The error is the errno with which it ends.
fn prepare(parent: Pid) -> std::result::Result<(), i32> {
    // The memory of an orphan would never be used.
    if process::die_with_parent(libc::SIGKILL).is_err() || nix::unistd::getppid() != parent {
        return Err(libc::ECHILD);
    }
    // The OOM killer should choose this process. Without the file it uses its own heuristic.
    if let Ok(file) = nix::fcntl::open(
        "/proc/self/oom_score_adj",
        nix::fcntl::OFlag::O_WRONLY,
        nix::sys::stat::Mode::empty(),
    ) {
        let _ = nix::unistd::write(&file, b"1000");
    }
    Ok(())
}
