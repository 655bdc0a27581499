//! The agent of a host: it allocates the memory of the host, agrees on one address with its ranks
//! and the other agents, and then serves processes that attach, until all have ended.
//!
//! The agent has two threads. The *server* serves the processes of this host and never blocks. The
//! *coordinator* goes through the phases one after another. Only the coordinator uses MPI, so that
//! an MPI that hangs in its shutdown disturbs no process.

pub mod buffer_request;
#[macro_use]
mod complain;
mod coordinator;
pub mod files;
pub mod first_failure;
mod gpu_sections;
pub mod group;
mod inherited;
mod job_electorate;
mod job_memory;
pub mod load_status;
pub mod log;
pub mod lookup;
mod mpi_abi;
mod orders;
mod present;
mod rank_refusal;
pub mod report;
mod report_interval;
mod server;
pub mod spec;
pub mod stack;
mod stop;
pub mod tensors;
#[cfg(test)]
mod thread_agents;
mod thread_error;
mod timed_error;

use std::os::fd::{AsFd, OwnedFd};
use std::process::ExitCode;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use hostbuf::{ErrorClass, JobError};
use hostbuf_os::process;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::SigSet;

use files::FolderSlot;
use group::Open;
use load_status::LoadStatus;
use report::{Report, end, exit_code};
use server::Server;
use spec::Spec;
use thread_error::unstarted_thread;

/// Returns whether the process behind a pidfd has ended.
fn has_ended(process: Option<&OwnedFd>) -> bool {
    process.is_some_and(|fd| {
        let mut fds = [PollFd::new(fd.as_fd(), PollFlags::POLLIN)];
        poll(&mut fds, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
    })
}

/// Runs an agent with the arguments of [`Spec::arguments`].
pub fn main(arguments: impl Iterator<Item = String>, open: Open) -> ExitCode {
    log::start();
    // Each rank needs two descriptors, and the soft limit is often too low.
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    if let Ok((_, hard)) = getrlimit(Resource::RLIMIT_NOFILE) {
        let _ = setrlimit(Resource::RLIMIT_NOFILE, hard, hard);
    }
    let spec = match Spec::parse(arguments) {
        Ok(spec) => spec,
        Err(error) => {
            let message = format!("{error}. Only `hostbuf run` and `hostbuf exec` start this program");
            return end("hostbuf-agent", ErrorClass::Invalid, message);
        }
    };
    let failed = |error: hostbuf::Error| {
        let error = JobError::from(error).with_host(process::host_name());
        let status = exit_code(error.class);
        Report::Failed(error).print();
        status
    };
    let (server, handle) = match Server::open(&spec) {
        Ok(both) => both,
        Err(error) => return failed(error),
    };
    let ending = Arc::new(OnceLock::new());
    let has_launcher = spec.reports;
    let folder = Arc::new(FolderSlot::default());
    // It stays for `hostbuf stat` until the agent ends.
    let loads = Arc::new(LoadStatus::default());
    let shared =
        coordinator::SharedState { ending: ending.clone(), folder: folder.clone(), loads: loads.clone() };
    let coordinator = match coordinator::start(spec, open, handle, shared) {
        Ok(coordinator) => coordinator,
        Err(error) if has_launcher => return failed(unstarted_thread(error)),
        Err(error) => {
            let error = JobError::from(unstarted_thread(error)).with_host(process::host_name());
            let status = exit_code(error.class);
            // The first rank prints it.
            server.serve_failure(error);
            return status;
        }
    };
    let served = server.serve();
    // An engine may hang in its shutdown, so the agent waits for it for a limited time only.
    let served_at = Instant::now();
    let may_wait = |ending: Option<&Instant>| match ending {
        Some(begun) if !served.was_cancelled => begun.elapsed() < Duration::from_secs(10),
        _ => served_at.elapsed() < Duration::from_secs(2),
    };
    folder.close();
    // From here on the signals have their default effect.
    let _ = SigSet::all().thread_unblock();
    while !coordinator.is_finished() && may_wait(ending.get()) && !has_ended(served.watched_process.as_ref())
    {
        std::thread::sleep(Duration::from_millis(1));
    }
    std::process::exit(served.status)
}
