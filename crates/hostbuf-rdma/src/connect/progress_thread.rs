//! The thread that answers the peers of an endpoint.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::signal::SigSet;

use crate::connect::endpoint::Endpoint;
use hostbuf::error::{Error, Result};
use hostbuf_os::fork_guard::ForkGuard;

/// A task that the thread performs periodically.
pub(crate) struct PeriodicTask {
    pub(crate) interval: Duration,
    pub(crate) run: Box<dyn Fn() + Send>,
}

/// A thread that answers connect messages and receives notifications. Dropping this stops it.
pub(crate) struct ProgressThread {
    fork_guard: ForkGuard,
    thread: Option<JoinHandle<()>>,
    stop: Arc<EventFd>,
}

impl ProgressThread {
    /// Starts the thread. It passes the immediate data of each notification to `on_notification`,
    /// and performs `task`.
    ///
    /// # Errors
    /// [`Error::Os`].
    pub(crate) fn start(
        endpoint: &Arc<Endpoint>,
        on_notification: impl Fn(u32) + Send + 'static,
        task: Option<PeriodicTask>,
    ) -> Result<ProgressThread> {
        let stop = EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)
            .map_err(|e| Error::os("creating an eventfd")(std::io::Error::from(e)))?;
        let stop = Arc::new(stop);
        let (endpoint, until) = (endpoint.clone(), stop.clone());
        let thread = std::thread::Builder::new().name("hostbuf-rdma".into()).spawn(move || {
            // The threads of the application handle its signals.
            let _ = SigSet::all().thread_block();
            run(&endpoint, &until, &on_notification, task);
        });
        let thread = thread.map_err(Error::os("starting the RDMA progress thread"))?;
        Ok(ProgressThread { fork_guard: ForkGuard::current(), thread: Some(thread), stop })
    }
}

fn run(endpoint: &Endpoint, stop: &EventFd, on_notification: &dyn Fn(u32), task: Option<PeriodicTask>) {
    let mut last = Instant::now();
    let timeout = task.as_ref().map(|task| task.interval.as_millis() as i32);
    let timeout =
        timeout.and_then(|timeout| PollTimeout::try_from(timeout).ok()).unwrap_or(PollTimeout::NONE);
    loop {
        if let Err(error) = endpoint.receive(on_notification) {
            tracing::error!(%error, "the RDMA progress thread stops: peers no longer get an answer");
            return;
        }
        let [datagrams, notifications] = endpoint.connections.incoming();
        let mut fds = [datagrams.as_fd(), notifications.as_fd(), stop.as_fd()]
            .map(|fd| PollFd::new(fd, PollFlags::POLLIN));
        let _ = poll(&mut fds, timeout);
        if fds[2].any().unwrap_or(false) {
            return;
        }
        if let Some(task) = &task
            && last.elapsed() >= task.interval
        {
            (task.run)();
            last = Instant::now();
        }
    }
}

impl Drop for ProgressThread {
    fn drop(&mut self) {
        if !self.fork_guard.is_current() {
            // The thread runs in the parent process, and the eventfd would stop it.
            std::mem::forget(self.thread.take());
            return;
        }
        let _ = self.stop.write(1);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
