//! The broker of a process that shares its pool with no other process.

use std::sync::Arc;

use hostbuf_os::fork_guard::ForkGuard;
use hostbuf_os::{process, thread};

use super::pool_options::PoolOptions;
use crate::broker::{Broker, BrokerOptions};
use crate::error::PoolError;
use crate::segment::SpaceEvent;

/// A broker in a thread of this process. It ends with this object.
#[derive(Debug)]
pub(super) struct PrivateBroker {
    name: String,
    /// The command that starts a broker where the client has looked for one.
    shared_command: String,
    stop: Arc<SpaceEvent>,
    fork_guard: ForkGuard,
}

impl PrivateBroker {
    /// Starts the broker of a client with these options. Only the host's memory limits it.
    ///
    /// # Errors
    /// [`PoolError::Os`].
    pub(super) fn start(client: &PoolOptions) -> Result<PrivateBroker, PoolError> {
        let random = process::random().map_err(PoolError::os("drawing a random number"))?;
        let name = format!("hostbuf-pool-private-{random:032x}");
        let stop = Arc::new(SpaceEvent::new().map_err(PoolError::os("opening an event descriptor"))?);
        let options = BrokerOptions::new().name(&name).limit(u64::MAX).per_client(u64::MAX);
        let options = options.gpu_limit(u64::MAX).gpu_per_client(u64::MAX);
        let mut broker = Broker::open_private(&options)?;
        let stopped = stop.clone();
        thread::spawn(c"hostbuf-broker", move || {
            // The program's handlers run in the program's threads.
            let _ = nix::sys::signal::SigSet::all().thread_block();
            use std::os::fd::AsFd;
            if let Err(error) = broker.serve(stopped.as_fd()) {
                tracing::error!(%error, "the broker of this process has ended");
            }
        })
        .map_err(PoolError::os("starting a thread"))?;
        let shared_command = client.broker_command();
        Ok(PrivateBroker { name, shared_command, stop, fork_guard: ForkGuard::current() })
    }

    /// Returns the abstract name of the broker's socket.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Returns the command that starts a broker where the client has looked for one.
    pub(super) fn shared_command(&self) -> &str {
        &self.shared_command
    }
}

impl Drop for PrivateBroker {
    fn drop(&mut self) {
        // A forked child shares the event with its parent, which has the thread.
        if self.fork_guard.is_current() {
            self.stop.notify();
        }
    }
}
