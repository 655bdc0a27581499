//! The attempts of a client to connect to the successor of its broker.

use std::collections::HashSet;
use std::time::Instant;

use super::broker_process::start_and_connect;
use super::connect::{ConnectFailure, OpenConnection, connect};
use super::pool_options::{PoolMode, PoolOptions};
use crate::error::PoolError;

/// The attempts of a client to connect to the successor of its broker.
#[derive(Debug)]
pub(super) struct ReconnectAttempts {
    /// The earliest time at which a broker is started.
    next_start: Instant,
    /// The errors that were logged.
    logged: HashSet<String>,
}

impl ReconnectAttempts {
    pub(super) fn new() -> ReconnectAttempts {
        ReconnectAttempts { next_start: Instant::now(), logged: HashSet::new() }
    }

    /// Connects to a new broker, which is started first if the options say so. After a start that
    /// has failed, no other one is tried for the timeout of the options.
    pub(super) fn connect_or_start(
        &mut self,
        options: &PoolOptions,
        identity: u64,
    ) -> Option<OpenConnection> {
        match connect(options, identity) {
            Ok(open) => return Some(open),
            Err(ConnectFailure::Other(error)) => self.log(options, &error),
            Err(ConnectFailure::NoBroker)
                if options.mode == PoolMode::Start && Instant::now() >= self.next_start =>
            {
                match start_and_connect(options, identity) {
                    Ok(open) => return Some(open),
                    Err(error) => self.log(options, &error),
                }
                self.next_start = Instant::now() + options.timeout;
            }
            Err(ConnectFailure::NoBroker) => {}
        }
        None
    }

    /// Logs an error, unless it was logged before.
    fn log(&mut self, options: &PoolOptions, error: &PoolError) {
        if self.logged.insert(error.to_string()) {
            tracing::warn!(client = options.name, %error, "a client of a pool finds no new broker");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_start_that_fails_is_logged_once_and_not_tried_again_at_once() {
        // The command `hostbuf broker` accepts no such name.
        let socket = format!("@no-broker-{}", std::process::id());
        let options = PoolOptions::new("client").mode(PoolMode::Start).socket(socket);
        let mut attempts = ReconnectAttempts::new();
        let mut next_start = || {
            assert!(attempts.connect_or_start(&options, 1).is_none());
            assert_eq!(attempts.logged.len(), 1);
            attempts.next_start
        };
        let begun = Instant::now();
        let first = next_start();
        assert!(first >= begun + options.timeout);
        assert_eq!(next_start(), first, "no broker was started");
        attempts.next_start = Instant::now();
        assert!(attempts.connect_or_start(&options, 1).is_none());
        assert!(attempts.next_start > first && attempts.logged.len() == 1);
    }
}
