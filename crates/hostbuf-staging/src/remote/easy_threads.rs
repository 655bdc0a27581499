//! Requests by the threads that read.

use std::mem::{forget, take};
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::thread;

use hostbuf_os::fork_guard::ForkGuard;
use hostbuf_os::poison::IgnorePoison;
use tokio::runtime::Handle;
use tokio::task::yield_now;
use tracing::Span;

use super::connection_pool::LONGEST_IDLE;
use super::connection_runtime::ConnectionRuntime;
use super::http_client::HttpClients;
use super::range_client::RangeClient;
use super::range_stream::RangeStream;
use super::remote_error::{RemoteError, RemoteProblem};
use super::remote_object::RemoteObject;

/// The connections of the threads that read. Each thread drives those that it uses.
pub(super) struct EasyThreads {
    clients: Arc<HttpClients>,
    /// The connections that no thread uses.
    idle: Mutex<Vec<ConnectionRuntime>>,
    fork_guard: ForkGuard,
}

impl EasyThreads {
    pub(super) fn new(clients: Arc<HttpClients>) -> EasyThreads {
        EasyThreads { clients, idle: Mutex::default(), fork_guard: ForkGuard::current() }
    }

    /// Runs a request in this thread.
    pub(super) fn run<T: Send>(
        &self,
        request: impl AsyncFnOnce(RangeClient) -> Result<T, RemoteError> + Send,
    ) -> Result<T, RemoteError> {
        // A thread of another runtime cannot wait for this one.
        match Handle::try_current() {
            Ok(_) => thread::scope(|scope| {
                let span = Span::current();
                let ended = scope.spawn(move || span.in_scope(|| self.run_here(request))).join();
                ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            }),
            Err(_) => self.run_here(request),
        }
    }

    fn run_here<T>(
        &self,
        request: impl AsyncFnOnce(RangeClient) -> Result<T, RemoteError>,
    ) -> Result<T, RemoteError> {
        if !self.fork_guard.is_current() {
            return Err(RemoteError::before("", RemoteProblem::Forked));
        }
        let idle = self.idle.lock().ignore_poison().pop();
        let connections = match idle {
            Some(connections) => connections,
            None => ConnectionRuntime::new(&self.clients, 1)
                .map_err(|problem| RemoteError::before("", problem))?,
        };
        let client = connections.client.clone();
        let result = connections.runtime.block_on(async {
            // Nothing has driven the connections since the last request: first the runtime hears
            // which ones the server has closed, then their tasks do.
            yield_now().await;
            yield_now().await;
            request(client).await
        });
        let mut idle = self.idle.lock().ignore_poison();
        // No thread drives these, so a thread that reads closes their connections.
        for unused in idle.iter() {
            unused.client.own.pool().close_expired(LONGEST_IDLE);
        }
        idle.push(connections);
        result
    }

    /// Reads a range of an object.
    pub(super) fn read(
        &self,
        object: &Arc<RemoteObject>,
        range: Range<u64>,
        into: &mut [u8],
    ) -> Result<(), RemoteError> {
        self.run(async |client| {
            let (mut stream, mut rest) = (RangeStream::new(object.clone(), client, range), into);
            while stream.read(&mut rest).await? > 0 {}
            Ok(())
        })
    }
}

impl Drop for EasyThreads {
    fn drop(&mut self) {
        // Another thread of the parent may have held the lock at a fork.
        let idle = take(self.idle.get_mut().ignore_poison());
        if !self.fork_guard.is_current() {
            // They have threads of the parent, and the connections are the parent's.
            return forget(idle);
        }
        for ConnectionRuntime { client, runtime } in idle {
            drop(client);
            // Waiting for its threads, which look names up, is not allowed in another runtime.
            runtime.shutdown_background();
        }
    }
}
