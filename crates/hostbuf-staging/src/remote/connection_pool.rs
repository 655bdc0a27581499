//! Idle connections.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use hostbuf_os::poison::IgnorePoison;

use super::http_connection::HttpConnection;

/// The time after which an idle connection is closed.
pub(super) const LONGEST_IDLE: Duration = Duration::from_secs(90);

/// The idle connections of one runtime.
pub(super) struct ConnectionPool {
    /// The most connections of all origins together.
    most: usize,
    /// The oldest connection is the first.
    idle: Mutex<Vec<IdleConnection>>,
}

struct IdleConnection {
    origin: String,
    since: Instant,
    connection: HttpConnection,
}

impl ConnectionPool {
    /// Makes a pool of at most `most` connections.
    pub(super) fn new(most: usize) -> ConnectionPool {
        ConnectionPool { most, idle: Mutex::default() }
    }

    /// Keeps a connection whose last response was received to its end. Closes the oldest ones if
    /// there are too many.
    pub(super) fn keep(&self, origin: String, mut connection: HttpConnection) {
        if connection.reset().is_err() {
            return;
        }
        let mut idle = self.idle.lock().ignore_poison();
        idle.push(IdleConnection { origin, since: Instant::now(), connection });
        let surplus = idle.len().saturating_sub(self.most);
        idle.drain(..surplus);
    }

    /// Returns a connection to an origin that the server has not closed.
    pub(super) fn take(&self, origin: &str) -> Option<HttpConnection> {
        self.close_expired(LONGEST_IDLE);
        let mut idle = self.idle.lock().ignore_poison();
        while let Some(index) = idle.iter().rposition(|unused| unused.origin == origin) {
            let mut connection = idle.remove(index).connection;
            if connection.is_reusable() {
                return Some(connection);
            }
        }
        None
    }

    /// Closes the connections that have been idle for `longest`.
    pub(super) fn close_expired(&self, longest: Duration) {
        self.idle.lock().ignore_poison().retain(|unused| unused.since.elapsed() < longest);
    }

    /// Returns the number of connections.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.idle.lock().ignore_poison().len()
    }
}
