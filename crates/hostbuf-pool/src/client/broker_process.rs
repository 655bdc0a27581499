//! The start of a broker by its first client.

use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::connect::{ConnectFailure, OpenConnection, connect, describe_socket};
use super::pool_options::PoolOptions;
use crate::error::PoolError;

/// The variable with the command that is started, for installations whose `hostbuf` is not in PATH.
const ENV_COMMAND: &str = "HOSTBUF_COMMAND";
/// The time without clients after which the broker ends, in seconds.
const IDLE: &str = "60";

/// Starts `hostbuf broker`, unless another client does so at the same time, and connects to it.
///
/// # Errors
/// [`PoolError::NoBroker`] if it does not start or does not listen in time.
pub(super) fn start_and_connect(options: &PoolOptions, identity: u64) -> Result<OpenConnection, PoolError> {
    let command = std::env::var_os(ENV_COMMAND).unwrap_or_else(|| "hostbuf".into());
    let mut broker = Command::new(&command);
    broker.args(["broker", "--idle", IDLE, "--name", &options.socket]);
    if let Some(path) = &options.path {
        broker.arg("--path").arg(path);
    }
    // A service manager that has started this process is not the broker's.
    broker.env_remove("NOTIFY_SOCKET");
    // It outlives this process, and must not get the signals of its terminal.
    broker.process_group(0).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = broker.spawn().map_err(|error| PoolError::NoBroker {
        why: format!("cannot start a broker ({} broker): {error}", command.to_string_lossy()),
    })?;
    let deadline = Instant::now() + options.timeout;
    let mut pause = Duration::from_millis(1);
    loop {
        match connect(options, identity) {
            Ok(open) => return Ok(open),
            Err(ConnectFailure::Other(error)) => return Err(error),
            Err(ConnectFailure::NoBroker) => {}
        }
        if Instant::now() > deadline {
            let ended = child.try_wait().ok().flatten();
            let state = ended.map_or("does not listen".to_owned(), |status| format!("has ended: {status}"));
            return Err(PoolError::NoBroker {
                why: format!(
                    "the broker ({} broker) {state}; it was started for the socket {}",
                    command.to_string_lossy(),
                    describe_socket(options)
                ),
            });
        }
        // The broker tells nobody when it listens.
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(50));
    }
}
