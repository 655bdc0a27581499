//! Connections, and the runtime that drives them.

use tokio::runtime::{Builder, Runtime};

use super::http_client::HttpClients;
use super::range_client::RangeClient;
use super::remote_error::RemoteProblem;

/// A runtime of one thread at a time, and a client whose connections it drives.
pub(super) struct ConnectionRuntime {
    pub(super) client: RangeClient,
    pub(super) runtime: Runtime,
}

impl ConnectionRuntime {
    /// Makes a runtime for at most `requests` requests at a time.
    pub(super) fn new(clients: &HttpClients, requests: usize) -> Result<ConnectionRuntime, RemoteProblem> {
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime
            .map_err(|error| RemoteProblem::Connect { why: format!("starting a runtime: {error}") })?;
        Ok(ConnectionRuntime { client: clients.client(requests)?, runtime })
    }
}
