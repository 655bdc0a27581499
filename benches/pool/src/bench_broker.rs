//! The broker of a benchmark, in a thread.

use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;

use hostbuf_pool::{Broker, BrokerOptions, Pool, PoolMode, PoolOptions};
use nix::sys::eventfd::EventFd;

/// A broker in a thread of this process, which ends with this object.
#[derive(Debug)]
pub struct BenchBroker {
    name: String,
    stop: Arc<EventFd>,
    thread: Option<JoinHandle<Result<(), String>>>,
}

impl BenchBroker {
    /// Starts a broker that listens at a name of this process, and at `path` if there is one.
    ///
    /// # Errors
    /// The broker's message.
    pub fn start(path: Option<&Path>) -> Result<BenchBroker, String> {
        let name = format!("hostbuf-bench-{}", std::process::id());
        let mut options = BrokerOptions::new().name(&name);
        options.path = path.map(Path::to_owned);
        let mut broker = Broker::open(&options).map_err(|error| error.to_string())?;
        let stop = Arc::new(EventFd::new().map_err(|error| error.to_string())?);
        let stopped = stop.clone();
        let serve = move || broker.serve(stopped.as_fd()).map_err(|error| error.to_string());
        Ok(BenchBroker { name, stop, thread: Some(std::thread::spawn(serve)) })
    }

    /// Returns the abstract name of its socket.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Connects to it.
    ///
    /// # Errors
    /// The message of the pool.
    pub fn connect(&self, client: &str) -> Result<Pool, String> {
        let options = PoolOptions::new(client).mode(PoolMode::Required).socket(&self.name);
        Pool::connect(options).map_err(|error| error.to_string())
    }
}

impl Drop for BenchBroker {
    fn drop(&mut self) {
        let _ = self.stop.write(1);
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(Err(why))) => eprintln!("the broker: {why}"),
            Some(Err(_)) => eprintln!("the broker has panicked"),
            _ => {}
        }
    }
}
