//! Without `hostbuf run`, the first rank on a host starts the host's agent.

use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use hostbuf::{AttachError, BufferOptions, Error, Result};
use hostbuf_os::session::{Session, SessionError};
use hostbuf_os::{process, socket};
use hostbuf_protocol::message::Message;

use super::rank::{is_daemon, job_key};
use crate::engines::Place;
use hostbuf_agent::buffer_request;
use hostbuf_agent::spec::{Spec, WatchedProcess};

/// The time in which the agent of a host has to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// The number of agents that a rank starts. An agent waits for the rank that has started it, so a
/// further one would end as the first.
const MAX_STARTS: u32 = 3;

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
            let why = format!("the engine provides no name for the job ({missing}): use `hostbuf run`");
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
            // The limit was what is left of this time.
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
                    "the agent of this host at @{name} has ended {MAX_STARTS} times at once after its start: check the limits of \
                     this process (ulimit -a), and run `hostbuf doctor` on this host"
                );
                return Err(AttachError::AgentGone { why }.into());
            }
            Ok(listener) => {
                started += 1;
                start(random, &name, buffers, timeout, &listener)?;
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
fn start(
    job: u128,
    name: &str,
    buffers: &[BufferOptions],
    timeout: Option<Duration>,
    listener: &OwnedFd,
) -> Result<()> {
    let failed = |source: std::io::Error| Error::Os {
        doing: format!("starting the agent of this host{}", process::start_remedy(&source)),
        source,
    };
    let daemon = daemon();
    let watched_process = process::start_time(daemon).map(|start| WatchedProcess::new(daemon, start));
    // The descriptor keeps its number through exec, so it must not be a standard stream.
    let fd = listener.as_raw_fd();
    let mut spec = Spec::new(job, name.into(), buffers.to_vec());
    spec.listener = Some(fd);
    spec.watched_process = watched_process;
    spec.timeout = timeout;
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

/// Returns the engine's process above this one, or the parent without an engine. A shell between
/// them ends with its own rank, but the agent serves all ranks.
fn daemon() -> i32 {
    let parent = nix::unistd::getppid().as_raw();
    let ancestors = std::iter::successors(Some(parent), |&pid| process::parent(pid).filter(|&p| p > 1));
    ancestors.take(64).find(|&pid| is_daemon(&process::name(pid))).unwrap_or(parent)
}

/// Makes the child inherit descriptor `fd` and run without a parent here.
#[allow(unsafe_code, reason = "forks the agent")]
fn inherit(command: &mut Command, fd: i32) {
    // SAFETY: between fork and exec there are only system calls: one changes the flag of a
    // descriptor, and a second fork, whose parent ends, makes the agent no child of this process.
    unsafe {
        command.pre_exec(move || {
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
