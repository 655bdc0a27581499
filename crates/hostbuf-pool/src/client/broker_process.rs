//! The start of a broker by its first client.

#![allow(unsafe_code, reason = "forks between fork and exec")]

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::connect::{ConnectFailure, OpenConnection, connect, describe_socket};
use super::pool_options::PoolOptions;
use crate::error::PoolError;
use crate::name_hash::name_hash;

/// The variable with the command that is started, for installations whose `hostbuf` is not in PATH.
const ENV_COMMAND: &str = "HOSTBUF_COMMAND";
/// The time without clients after which the broker ends, in seconds.
const IDLE: &str = "60";
/// The time for which a client keeps connecting after the broker that it started has ended: a
/// broker that another client started may have the name already, and listen soon.
const OTHER_BROKER: Duration = Duration::from_millis(500);

/// Makes a command start in a session of its own, as the child of no process of this one's: it
/// outlives this process, does not get the signals of its terminal, and its end leaves no zombie.
/// The process that [`Command::spawn`] returns ends at once.
fn detach(command: &mut Command) {
    let fork_again = || {
        // SAFETY: a child of a process with several threads may make these calls.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()),
            0 => {
                // SAFETY: as above. It fails only for the leader of a group, which a new process
                // is not.
                unsafe { libc::setsid() };
                Ok(())
            }
            // SAFETY: as above.
            _ => unsafe { libc::_exit(0) },
        }
    };
    // SAFETY: the closure allocates nothing and takes no lock.
    unsafe { command.pre_exec(fork_again) };
}

/// Starts `hostbuf broker`, unless another client does so at the same time, and connects to it.
///
/// # Errors
/// [`PoolError::NoBroker`] if it does not start, ends at once, or does not listen in time.
pub(super) fn start_and_connect(options: &PoolOptions, identity: u64) -> Result<OpenConnection, PoolError> {
    let command = std::env::var_os(ENV_COMMAND).unwrap_or_else(|| "hostbuf".into());
    let mut broker = Command::new(&command);
    broker.args(["broker", "--idle", IDLE, "--name"]);
    let mut text = format!("{} broker", command.to_string_lossy());
    match &options.path {
        None => {
            broker.arg(&options.socket);
            text += &format!(" --name {}", options.socket);
        }
        // The usual name may be that of another broker of this user.
        Some(path) => {
            let hash = name_hash(&path.to_string_lossy());
            broker.arg(format!("{}-{hash:016x}", options.socket)).arg("--path").arg(path);
            text += &format!(" --path {}", path.display());
        }
    }
    // A service manager that has started this process is not the broker's.
    broker.env_remove("NOTIFY_SOCKET");
    // The broker has the only write end: this process sees its end.
    let (end, held) =
        nix::unistd::pipe2(OFlag::O_CLOEXEC).map_err(PoolError::os("making a pipe for a new broker"))?;
    broker.stdin(held).stdout(Stdio::null()).stderr(Stdio::null());
    detach(&mut broker);
    let started = broker.spawn().and_then(|mut child| child.wait());
    drop(broker);
    started.map_err(|error| PoolError::NoBroker {
        why: format!(
            "cannot start a broker ({text}): {error}; install the command hostbuf in a folder of PATH, or set {ENV_COMMAND} to its path"
        ),
    })?;
    let mut deadline = Instant::now() + options.timeout;
    let mut has_ended = false;
    let mut pause = Duration::from_millis(1);
    loop {
        match connect(options, identity) {
            Ok(open) => return Ok(open),
            Err(ConnectFailure::Other(error)) => return Err(error),
            Err(ConnectFailure::NoBroker) => {}
        }
        if Instant::now() > deadline {
            let what = if has_ended {
                "has ended at once".to_owned()
            } else {
                format!("does not listen at {} within {:?}", describe_socket(options), options.timeout)
            };
            let why = format!("the broker ({text}) {what}: run that command to see why");
            return Err(PoolError::NoBroker { why });
        }
        // The broker tells nobody when it listens.
        if has_ended {
            std::thread::sleep(pause);
        } else if ends_within(&end, pause) {
            has_ended = true;
            deadline = deadline.min(Instant::now() + OTHER_BROKER);
        }
        pause = (pause * 2).min(Duration::from_millis(50));
    }
}

/// Waits for the end of the process that has the write end of this pipe, at most for `limit`.
fn ends_within(pipe: &OwnedFd, limit: Duration) -> bool {
    let mut fds = [PollFd::new(pipe.as_fd(), PollFlags::empty())];
    poll(&mut fds, PollTimeout::try_from(limit).unwrap_or(PollTimeout::MAX)).is_ok_and(|ready| ready > 0)
}
