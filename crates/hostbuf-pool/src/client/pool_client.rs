//! The owner of a connection.

use std::sync::Arc;

use super::connection::PoolConnection;

/// The owner of a connection: the handles of the pool, its producers, its blocks and its holds
/// share it. The service thread ends with the last of them.
#[derive(Debug)]
pub(super) struct PoolClient {
    connection: Arc<PoolConnection>,
}

impl PoolClient {
    pub(super) fn new(connection: Arc<PoolConnection>) -> PoolClient {
        PoolClient { connection }
    }

    /// Returns the connection.
    pub(super) fn connection(&self) -> &Arc<PoolConnection> {
        &self.connection
    }
}

impl Drop for PoolClient {
    fn drop(&mut self) {
        if self.connection.link.is_of_this_process() {
            self.connection.link.close();
            self.connection.detach_all();
            self.connection.stop.notify();
        }
    }
}
