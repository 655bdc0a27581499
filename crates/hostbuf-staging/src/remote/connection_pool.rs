//! Connections that wait for a request.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use hostbuf_os::poison::IgnorePoison;

use super::http_connection::HttpConnection;

/// The time after which an unused connection is not used again.
const IDLE: Duration = Duration::from_secs(90);

/// A pool of connections that wait for a request.
#[derive(Default)]
pub(super) struct ConnectionPool {
    idle: Mutex<Vec<IdleConnection>>,
}

struct IdleConnection {
    origin: String,
    since: Instant,
    connection: HttpConnection,
}

impl ConnectionPool {
    /// Keeps a connection for another request.
    pub(super) fn keep(&self, origin: String, mut connection: HttpConnection) {
        if connection.reset().is_ok() {
            let unused = IdleConnection { origin, since: Instant::now(), connection };
            self.idle.lock().ignore_poison().push(unused);
        }
    }

    /// Returns a connection that the server has not closed.
    pub(super) fn take(&self, origin: &str) -> Option<HttpConnection> {
        let mut idle = self.idle.lock().ignore_poison();
        idle.retain(|unused| unused.since.elapsed() < IDLE);
        while let Some(index) = idle.iter().rposition(|unused| unused.origin == origin) {
            let mut connection = idle.swap_remove(index).connection;
            if connection.is_reusable() {
                return Some(connection);
            }
        }
        None
    }
}
