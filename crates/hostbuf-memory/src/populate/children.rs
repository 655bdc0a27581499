//! Workers that are children of this process: if one is killed, populating fails, but this process
//! continues.

#![allow(unsafe_code, reason = "forks children that populate")]

use std::io;
use std::sync::atomic::Ordering;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, fork};

use crate::error::{Error, Result};
use crate::populate::view::FileView;
use crate::populate::work::{PopulateMethod, Tally, Task, WorkerFailure};
use hostbuf_os::cores::Cores;
use hostbuf_os::{memory, process};

/// Populates the file of `task`. Returns the number of bytes on huge pages, or the failure of a
/// worker. The outer error means that the workers could not be started.
pub(super) fn run(
    task: Task,
    cores: &Cores,
    progress: &mut dyn FnMut(u64),
) -> Result<std::result::Result<u64, WorkerFailure>> {
    let tally = SharedTally::new()?;
    let oom_kills = memory::oom_kills();
    let parent = nix::unistd::getpid();
    let mut children: Vec<Pid> = Vec::new();
    // This process only waits, so one of the workers may use its core.
    for (worker, first) in cores.spread(task.workers(cores.threads())).iter().enumerate() {
        let method = if worker == 0 { PopulateMethod::Write } else { PopulateMethod::Fault };
        // SAFETY: the child only does what is safe after a fork in a process with threads: system
        // calls and atomics.
        match unsafe { fork() } {
            Ok(ForkResult::Parent { child }) => children.push(child),
            Ok(ForkResult::Child) => {
                cores.begin_at(first);
                let status = in_child(task, method, tally.get(), parent);
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
        for child in left {
            match waitpid(child, Some(WaitPidFlag::WNOHANG)) {
                Ok(WaitStatus::StillAlive) => running.push(child),
                Ok(WaitStatus::Exited(_, 0)) => {}
                Ok(WaitStatus::Exited(_, errno)) => result = result.and(Err(errno.into())),
                Ok(WaitStatus::Signaled(child, signal, _)) => {
                    // The kernel counts before it sends the signal. It may hide the count.
                    let for_memory = signal == Signal::SIGKILL
                        && (oom_kills.is_none() || memory::oom_kills() != oom_kills);
                    let ended =
                        WorkerFailure::Ended { pid: child.as_raw(), signal: signal as i32, for_memory };
                    result = result.and(Err(ended));
                }
                Ok(_) | Err(nix::Error::EINTR) => running.push(child),
                Err(_) => result = result.and(Err(libc::ECHILD.into())),
            }
        }
        left = running;
        if result.is_err() {
            reap(&left);
            break;
        }
        progress(tally.get().done.load(Ordering::Relaxed));
        if !left.is_empty() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    Ok(result.map(|()| tally.get().huge.load(Ordering::Relaxed)))
}

fn reap(children: &[Pid]) {
    for &child in children {
        let _ = kill(child, Signal::SIGKILL);
        let _ = waitpid(child, None);
    }
}

fn in_child(task: Task, method: PopulateMethod, tally: &Tally, parent: Pid) -> i32 {
    // The memory of an orphan would never be used.
    if process::die_with_parent(libc::SIGKILL).is_err() || nix::unistd::getppid() != parent {
        return libc::ECHILD;
    }
    // The OOM killer should choose this process. Without the file it uses its own heuristic.
    if let Ok(file) = nix::fcntl::open(
        "/proc/self/oom_score_adj",
        nix::fcntl::OFlag::O_WRONLY,
        nix::sys::stat::Mode::empty(),
    ) {
        let _ = nix::unistd::write(&file, b"1000");
    }
    // Each window is mapped separately: if memory is tight, page tables for more may not fit.
    let view = |at, length| FileView::map(task.fd, at, length, task.pages).map(|view| (view, 0));
    task.work(tally, task.length, method, view, &mut || {}).err().unwrap_or(0)
}

/// A [`Tally`] that the children share.
struct SharedTally(*mut Tally);

impl SharedTally {
    fn new() -> Result<SharedTally> {
        // SAFETY: a new anonymous mapping.
        let at = unsafe {
            let (rw, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
            libc::mmap(std::ptr::null_mut(), size_of::<Tally>(), rw, flags, -1, 0)
        };
        if at == libc::MAP_FAILED {
            return Err(Error::os("mapping a page")(io::Error::last_os_error()));
        }
        Ok(SharedTally(at.cast()))
    }

    fn get(&self) -> &Tally {
        // SAFETY: mapped until drop, zeroed by the kernel, atomics only.
        unsafe { &*self.0 }
    }
}

impl Drop for SharedTally {
    fn drop(&mut self) {
        // SAFETY: new() mapped it; the children have mappings of their own.
        unsafe { libc::munmap(self.0.cast(), size_of::<Tally>()) };
    }
}
