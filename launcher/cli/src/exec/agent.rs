//! Without `hostbuf run`, the first rank on a host starts the host's agent.

use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use hostbuf::{AttachError, BufferOptions, Error, Result};
use hostbuf_os::session::{Session, SessionError};
use hostbuf_os::{process, socket};
use hostbuf_protocol::message::Message;

use super::network_namespace::is_isolated;
use super::rank::{is_daemon, job_key};
use crate::engines::Place;
use hostbuf_agent::buffer_request;
use hostbuf_agent::spec::{Spec, WatchedProcess};

/// The time in which the agent of a host has to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// The number of agents that a rank starts. An agent waits for the rank that has started it, so a
/// further one would fail in the same way.
const MAX_STARTS: u32 = 3;

/// The time that an agent waits for further ranks if its network namespace seems to hide it from
/// them.
const ISOLATED_TIMEOUT: Duration = Duration::from_secs(10);

/// The additional time of an agent that another rank than the first has started. Each rank may have
/// an agent of its own, and the engine ends the others when the first has printed its error.
const LATER_RANK: Duration = Duration::from_secs(2);

/// Says `hello` to this host's agent, which is started if necessary. Returns the session and the
/// name of the agent's socket.
///
/// # Errors
/// [`Error::Attach`] if another user has the name, or if the agent does not start.
pub(super) fn find_or_start(
    buffers: &[BufferOptions],
    timeout: Option<Duration>,
    place: Place,
    hello: &Message<'_>,
) -> Result<(Session, String)> {
    let random =
        process::random().map_err(|e| Error::Os { doing: "asking for a random number".into(), source: e })?;
    let key = match job_key() {
        Ok(key) => key,
        Err(_) if place.local_size == 1 => format!("alone/{random:032x}"),
        Err(missing) => {
            let why = format!(
                "the engine provides no name for the job ({missing}): use `hostbuf run`, or, if a container hides the engine's \
                 processes, put `hostbuf exec` in front of the container's command"
            );
            return Err(AttachError::NotLaunched { why }.into());
        }
    };
    // The length of a socket's name is limited.
    let name = format!("hostbuf/{}/{:032x}", nix::unistd::geteuid(), buffer_request::hash(key.as_bytes()));
    let deadline = Instant::now() + ANSWER_TIMEOUT;
    let (mut started, mut ended) = (0, 0);
    loop {
        match Session::open(&name, Some(deadline.saturating_duration_since(Instant::now())), hello) {
            Ok(session) => return Ok((session, name)),
            Err(SessionError::NoServer) => {}
            Err(error @ SessionError::OtherUser { .. }) => {
                let why = format!("another user has taken the name @{name} of this job's agent: {error}");
                return Err(AttachError::OtherUser { why }.into());
            }
            // The reason keeps its class.
            Err(error @ (SessionError::Refused(_) | SessionError::OtherVersion(_))) => {
                return Err(AttachError::from(error).into());
            }
            // An agent that ends closes connections that it has not accepted, and frees its name.
            Err(SessionError::Gone) if ended < MAX_STARTS => ended += 1,
            Err(SessionError::Gone) => return Err(gone().into()),
            // The limit of this call was what was left of `ANSWER_TIMEOUT`.
            Err(SessionError::Timeout(_)) => {
                let why =
                    format!("the agent of this host at @{name}: {}", SessionError::Timeout(ANSWER_TIMEOUT));
                return Err(AttachError::AgentGone { why }.into());
            }
            Err(error) => {
                let why = format!("the agent of this host at @{name}: {error}");
                return Err(AttachError::AgentGone { why }.into());
            }
        }
        // The process that binds the name starts the agent; the other processes find it.
        match socket::listen_on(&name) {
            Ok(_) if started == MAX_STARTS => {
                let why = format!(
                    "the agent of this host at @{name} was started {MAX_STARTS} times and ended immediately each time: check the limits of \
                     this process (ulimit -a), and run `hostbuf doctor` on this host"
                );
                return Err(AttachError::AgentGone { why }.into());
            }
            Ok(listener) => {
                started += 1;
                let mut spec = Spec::new(random, name.clone(), buffers.to_vec());
                spec.timeout = timeout;
                start(spec, place, &listener)?;
            }
            Err(e) if e.kind() == std::io::ErrorKind::AddrInUse && Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(e) => return Err(Error::Os { doing: format!("listening on @{name}"), source: e }),
        }
    }
}

/// Returns the error of an agent that was killed after this rank had connected.
pub(super) fn gone() -> AttachError {
    AttachError::AgentGone { why: "the agent of this host ended before the buffer was agreed on".into() }
}

/// Starts the agent in a separate session, neither as a child of this process nor with its streams.
/// It ends with the process that has started this rank, which is the job's daemon with every
/// engine.
fn start(mut spec: Spec, place: Place, listener: &OwnedFd) -> Result<()> {
    let failed = |source: std::io::Error| Error::Os {
        doing: format!("starting the agent of this host{}", process::start_remedy(&source)),
        source,
    };
    let daemon = daemon();
    let watched = daemon.unwrap_or_else(parent);
    spec.watched_process = process::start_time(watched).map(|start| WatchedProcess::new(watched, start));
    // In a container with a PID namespace of its own, process 1 is the rank's command or a shell.
    spec.hidden_engine = daemon.is_none() && watched == 1;
    if place.local_size > 1 && is_isolated(daemon, &spec.socket) {
        spec.isolated = Some(isolated_limit(spec.timeout, place.local_rank));
    }
    // The descriptor keeps its number through exec, so it must not be a standard stream.
    let fd = listener.as_raw_fd();
    spec.listener = Some(fd);
    let mut command = Command::new(std::env::current_exe().map_err(failed)?);
    command.arg("agent").args(spec.arguments());
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    inherit(&mut command, fd);
    let status = command.status().map_err(failed)?;
    if status.success() {
        return Ok(());
    }
    let why = format!("the agent of this host could not be started: {status}");
    Err(AttachError::AgentGone { why }.into())
}

/// Returns the limit of an agent that rank `local_rank` of its host has started, and that the other
/// ranks seem to be unable to reach. `timeout` is the limit on the start of the job.
fn isolated_limit(timeout: Option<Duration>, local_rank: u64) -> Duration {
    let limit = timeout.map_or(ISOLATED_TIMEOUT, |timeout| timeout.min(ISOLATED_TIMEOUT));
    limit + if local_rank > 0 { LATER_RANK } else { Duration::ZERO }
}

/// Returns the engine's process above this one, if there is one. A shell between them ends with its
/// own rank, but the agent serves all ranks.
fn daemon() -> Option<i32> {
    let ancestors = std::iter::successors(Some(parent()), |&pid| process::parent(pid).filter(|&p| p > 0));
    ancestors.take(64).find(|&pid| is_daemon(&process::name(pid)))
}

/// Returns the parent of this process.
fn parent() -> i32 {
    nix::unistd::getppid().as_raw()
}

/// Makes the child inherit only descriptor `fd`, and detaches it from this process. An engine may
/// wait until all copies of the pipes that its ranks inherit are closed.
#[allow(unsafe_code, reason = "forks the agent")]
fn inherit(command: &mut Command, fd: i32) {
    // SAFETY: between fork and exec there are only system calls: two change the flags of
    // descriptors, and a second fork, whose parent ends, makes the agent no child of this process.
    unsafe {
        command.pre_exec(move || {
            // Before Linux 5.11 the agent keeps the descriptors of the rank.
            libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC);
            if libc::fcntl(fd, libc::F_SETFD, 0) != 0 {
                return Err(std::io::Error::last_os_error());
            }
            match libc::fork() {
                -1 => Err(std::io::Error::last_os_error()),
                0 => {
                    libc::setsid();
                    Ok(())
                }
                _ => libc::_exit(0),
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_rank_reports_before_the_others() {
        for (timeout, first) in [(None, 10), (Some(600), 10), (Some(10), 10), (Some(3), 3)] {
            let limit = |rank| isolated_limit(timeout.map(Duration::from_secs), rank).as_secs();
            assert_eq!([limit(0), limit(1), limit(7)], [first, first + 2, first + 2], "{timeout:?}");
        }
    }
}
