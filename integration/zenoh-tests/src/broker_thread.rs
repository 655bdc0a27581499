//! A broker in a thread of the test.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use hostbuf_pool::{Broker, BrokerOptions, Pool, PoolMode, PoolOptions};
use nix::sys::eventfd::EventFd;

/// The time for which blocks of a producer that has ended stay readable.
const LINGER: Duration = Duration::from_millis(100);

/// A broker in a thread of the test. It ends with this object.
#[derive(Debug)]
pub struct BrokerThread {
    name: String,
    stop: Arc<EventFd>,
    thread: Option<JoinHandle<()>>,
}

impl BrokerThread {
    /// Starts a broker with a name of its own.
    ///
    /// # Panics
    /// If it does not start.
    #[must_use]
    pub fn start() -> BrokerThread {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("hostbuf-zenoh-test-{}-{number}", std::process::id());
        let mut broker =
            Broker::open(&BrokerOptions::new().name(&name).linger(LINGER)).expect("the name is free");
        let stop = Arc::new(EventFd::new().expect("an event descriptor"));
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || broker.serve(stopped.as_fd()).expect("it serves"));
        BrokerThread { name, stop, thread: Some(thread) }
    }

    /// Returns the name of its socket.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Connects to the broker at a socket.
    ///
    /// # Panics
    /// If there is none.
    #[must_use]
    pub fn connect_to(name: &str, client: &str) -> Pool {
        let options = PoolOptions::new(client).mode(PoolMode::Required).socket(name);
        Pool::connect(options).expect("the broker listens")
    }

    /// Connects to this broker.
    #[must_use]
    pub fn connect(&self, client: &str) -> Pool {
        BrokerThread::connect_to(&self.name, client)
    }
}

impl Drop for BrokerThread {
    fn drop(&mut self) {
        self.stop.write(1).expect("it is open");
        let ended = self.thread.take().expect("it runs").join();
        assert!(ended.is_ok() || std::thread::panicking());
    }
}
