//! What one process has to send with, and the thread that hears what others tell it.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::signal::SigSet;

use crate::error::{Error, Result};
use crate::os::cores;
use crate::os::lineage::Lineage;
use crate::rdma::connect::connections::{Address, Links, Parts};
use crate::rdma::connect::device_selection;
use crate::rdma::connect::endpoint_info::Card;
use crate::rdma::options::Options;
use crate::rdma::verbs::completion_queue::Completions;
use crate::rdma::verbs::datagram::Mail;
use crate::rdma::verbs::in_flight::Flights;
use crate::rdma::verbs::port::Port;
use crate::rdma::verbs::shared_receive_queue::Receives;
use crate::register::{Registrar, Verbs};

/// The most requests under way at a time, to all others together.
const REQUESTS: u32 = 4096;
/// Places for what peers tell; more of them wait for a moment.
const TOLD: u32 = 1024;

/// See the [module](self).
pub(crate) struct Endpoint {
    lineage: Lineage,
    pub(crate) flights: Flights,
    pub(crate) links: Links,
    pub(crate) options: Options,
}

/// What a thread does beside something else.
pub(crate) type Chore = Box<dyn Fn() + Send>;

/// The thread that answers others, and hears what they tell; until this is dropped.
pub(crate) struct Listener {
    lineage: Lineage,
    thread: Option<JoinHandle<()>>,
    stop: Arc<EventFd>,
}

impl Parts {
    /// The device, and what every process has of it.
    ///
    /// # Errors
    /// [`Error::Invalid`] for options that make no sense; [`Error::Unsupported`]; [`Error::Os`].
    pub(crate) fn open(options: &Options) -> Result<Parts> {
        options.check()?;
        // Where nothing is known of any, the first one says what is wrong with it.
        let nearest = || device_selection::nearest(&Verbs::devices().unwrap_or_default(), cores::node());
        let device = options.device.clone().or_else(nearest);
        let verbs = Arc::new(Verbs::open(device.as_deref())?);
        let port = Port::choose(&verbs, options.gid)?.with_mtu(options.mtu)?;
        let mail = Mail::new(&verbs, port)?;
        let sends = Arc::new(Completions::new(&verbs, REQUESTS)?);
        let receives = Arc::new(Receives::new(&verbs, TOLD, 64)?);
        tracing::info!(device = verbs.name(), address = Port::show(port.address), "RDMA");
        Ok(Parts { verbs, port, mail, sends, receives })
    }
}

impl Endpoint {
    /// Number `own` of those whose cards these are.
    pub(crate) fn new(parts: Parts, own: usize, cards: &[Card], options: Options) -> Endpoint {
        let addresses = cards.iter().map(|c| Address { port: c.port, pair: c.pair }).collect();
        let flights = Flights::new(parts.sends.clone(), REQUESTS, cards.len(), options.depth, options.busy);
        let links = Links::new(parts, cards[0].number, own, addresses, options.clone());
        Endpoint { lineage: Lineage::here(), flights, links, options }
    }

    /// # Errors
    /// [`Error::Forked`] in a child of the process that made it: what the device tells is the parent's to hear.
    pub(crate) fn check_here(&self) -> Result<()> {
        if self.lineage.is_here() { Ok(()) } else { Err(crate::register::Error::Forked.into()) }
    }

    pub(crate) fn is_here(&self) -> bool {
        self.lineage.is_here()
    }

    /// Begins to answer others; each number that they tell goes to `told`, in that thread, which also does now and then what is to
    /// be done so often.
    ///
    /// # Errors
    /// [`Error::Os`].
    pub(crate) fn listen(
        self: &Arc<Self>,
        told: impl Fn(u32) + Send + 'static,
        now_and_then: Option<(Duration, Chore)>,
    ) -> Result<Listener> {
        let stop = EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)
            .map_err(|e| Error::os("making an eventfd")(std::io::Error::from(e)))?;
        let stop = Arc::new(stop);
        let (endpoint, until) = (self.clone(), stop.clone());
        let thread = std::thread::Builder::new().name("hostbuf-rdma".into()).spawn(move || {
            // The application's signals are for its own threads.
            let _ = SigSet::all().thread_block();
            endpoint.answer_until(&until, &told, now_and_then);
        });
        let thread = thread.map_err(Error::os("starting the thread that answers other hosts"))?;
        Ok(Listener { lineage: Lineage::here(), thread: Some(thread), stop })
    }

    fn answer_until(&self, stop: &EventFd, told: &dyn Fn(u32), now_and_then: Option<(Duration, Chore)>) {
        let mut last = Instant::now();
        let nap = now_and_then.as_ref().map(|(every, _)| every.as_millis() as i32);
        let nap = nap.and_then(|nap| PollTimeout::try_from(nap).ok()).unwrap_or(PollTimeout::NONE);
        loop {
            if let Err(error) = self.hear(told) {
                tracing::error!(%error, "this process answers nobody any more");
                return;
            }
            let incoming = [
                self.links.mail().incoming().as_fd(),
                self.links.receives().completions().as_fd(),
                stop.as_fd(),
            ];
            let mut fds = incoming.map(|fd| PollFd::new(fd, PollFlags::POLLIN));
            let _ = poll(&mut fds, nap);
            if fds[2].any().unwrap_or(false) {
                return;
            }
            if let Some((every, chore)) = &now_and_then
                && last.elapsed() >= *every
            {
                chore();
                last = Instant::now();
            }
        }
    }

    fn hear(&self, told: &dyn Fn(u32)) -> Result<()> {
        let (mail, receives) = (self.links.mail(), self.links.receives());
        mail.incoming().arm()?;
        receives.completions().arm()?;
        let mut result = Ok(());
        receives.completions().take(|completion| {
            if let Some(number) = completion.imm_data() {
                told(u32::from_be(number));
            }
            // The connection that it came by is gone: so is the place, until it is given again.
            if let Err(error) = receives.give(completion.wr_id()) {
                result = Err(error);
            }
        })?;
        // Behind what was told: a letter may end a connection, and with it what it has told that nobody has taken yet.
        result.and_then(|()| self.links.read_mail())
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if !self.lineage.is_here() {
            // The thread is the parent's, and so is what would stop it.
            std::mem::forget(self.thread.take());
            return;
        }
        let _ = self.stop.write(1);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
