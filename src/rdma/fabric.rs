//! The hosts of a job, joined by RDMA.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::signal::SigSet;
use tracing::info_span;

use crate::buffer::owned::{self, Registrations};
use crate::buffer::{Fill, HostBuffer};
use crate::error::{Error, Result};
use crate::job::{Collective, Hosts, all_or_none};
use crate::os::process;
use crate::rdma::completions::Completions;
use crate::rdma::flights::Flights;
use crate::rdma::links::{Address, Links, Parts};
use crate::rdma::mail::Mail;
use crate::rdma::options::Options;
use crate::rdma::port::Port;
use crate::rdma::receives::Receives;
use crate::register::{Access, Probe, Registrar, Registration, Span, Verbs};

/// How many signals each process has.
pub const SIGNALS: usize = 64;
/// The most requests under way at a time, to all hosts together.
const REQUESTS: u32 = 4096;
/// Places for what peers tell; more of them wait for a moment.
const TOLD: u32 = 1024;

/// The hosts of a job, joined so that each can write into and read from the others' part of a buffer.
///
/// The process that leads its host, the first of its ranks, does the I/O. On the others every operation is
/// [`Error::Unsupported`].
pub struct Fabric {
    pub(super) shared: Option<Arc<Shared>>,
    listener: Option<JoinHandle<()>>,
    stop: Option<Arc<EventFd>>,
    hosts: usize,
    own: usize,
}

/// What the listener and the users share.
pub(super) struct Shared {
    pub(super) flights: Flights,
    pub(super) links: Links,
    pub(super) signals: Signals,
    /// Each host's key for its part of the buffer.
    pub(super) keys: Vec<u32>,
    pub(super) segment: Mutex<Option<Registration<Verbs>>>,
    pub(super) span: Span,
    pub(super) options: Options,
    pub(super) buffer: HostBuffer,
}

/// How often each signal has come, and who waits for one.
pub(super) struct Signals {
    counts: [AtomicU64; SIGNALS],
    lock: Mutex<()>,
    came: Condvar,
}

fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What hosts tell each other of themselves.
#[derive(Clone, Copy, Default)]
struct Card {
    port: [u8; 16],
    pair: u32,
    key: u32,
    fabric: u64,
}

impl Card {
    const SIZE: usize = 32;

    fn write(&self) -> [u8; Card::SIZE] {
        let mut bytes = [0; Card::SIZE];
        bytes[..16].copy_from_slice(&self.port);
        bytes[16..20].copy_from_slice(&self.pair.to_le_bytes());
        bytes[20..24].copy_from_slice(&self.key.to_le_bytes());
        bytes[24..].copy_from_slice(&self.fabric.to_le_bytes());
        bytes
    }

    fn read(bytes: &[u8]) -> Card {
        let short = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        Card {
            port: bytes[..16].try_into().expect("sixteen bytes"),
            pair: short(16),
            key: short(20),
            fabric: u64::from_le_bytes(bytes[24..32].try_into().expect("eight bytes")),
        }
    }
}

impl Fabric {
    /// Joins the hosts of `group` for `buffer`, which all of them have. Collective. Connections are made later, when the first
    /// operation wants one.
    ///
    /// # Errors
    /// On all ranks: [`Error::Unsupported`] where a host has no RDMA device that is up; [`Error::Disagreed`] when the hosts'
    /// buffers differ; [`Error::Freeze`] for a frozen buffer; [`Error::Invalid`] for options that make no sense.
    pub fn connect(group: &dyn Collective, buffer: &HostBuffer, options: Options) -> Result<Fabric> {
        let _span = info_span!("fabric", buffer = %buffer.name()).entered();
        let hosts = Hosts::of(group)?;
        buffer.compare(group)?;
        let opened = if hosts.leads() { open(buffer, &options).map(Some) } else { Ok(None) };
        let opened = all_or_none(group, opened)?;
        let mut fabric =
            Fabric { shared: None, listener: None, stop: None, hosts: hosts.count, own: hosts.index };
        let Some((parts, registration)) = opened else {
            group.barrier()?;
            return Ok(fabric);
        };
        let card = Card {
            port: parts.port.address,
            pair: parts.mail.number(),
            key: registration.handle().rkey(),
            fabric: random(),
        };
        let mut all = vec![0; Card::SIZE * hosts.count];
        hosts.leaders.all_gather(&card.write(), &mut all)?;
        let cards: Vec<Card> = all.chunks_exact(Card::SIZE).map(Card::read).collect();
        let addresses = cards.iter().map(|c| Address { port: c.port, pair: c.pair }).collect();
        let number = cards[0].fabric;
        let flights = Flights::new(parts.sends.clone(), REQUESTS, hosts.count, options.depth, options.busy);
        let shared = Arc::new(Shared {
            flights,
            links: Links::new(parts, number, hosts.index, addresses, options.clone()),
            signals: Signals {
                counts: std::array::from_fn(|_| AtomicU64::new(0)),
                lock: Mutex::new(()),
                came: Condvar::new(),
            },
            keys: cards.iter().map(|card| card.key).collect(),
            segment: Mutex::new(Some(registration)),
            span: Span::new(buffer.as_ptr().as_ptr() as usize, buffer.len())?,
            options,
            buffer: buffer.clone(),
        });
        let registrations: Arc<dyn Registrations> = shared.clone();
        owned::tell(Arc::downgrade(&registrations));
        let stop = EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)
            .map_err(|e| Error::os("making an eventfd")(std::io::Error::from(e)))?;
        let stop = Arc::new(stop);
        let (of_thread, told) = (shared.clone(), stop.clone());
        let listener = std::thread::Builder::new().name("hostbuf-rdma".into()).spawn(move || {
            // The application's signals are for its own threads.
            let _ = SigSet::all().thread_block();
            of_thread.listen(&told);
        });
        fabric.listener = Some(listener.map_err(Error::os("starting the thread that answers other hosts"))?);
        (fabric.shared, fabric.stop) = (Some(shared), Some(stop));
        // Nobody asks before all can answer.
        group.barrier()?;
        Ok(fabric)
    }

    /// Whether hosts can be joined here, and if not, why.
    #[must_use]
    pub fn probe() -> Probe {
        Verbs::probe()
    }

    /// How many hosts there are.
    #[must_use]
    pub fn hosts(&self) -> usize {
        self.hosts
    }

    /// Which of them this is.
    #[must_use]
    pub fn host(&self) -> usize {
        self.own
    }

    pub(super) fn shared(&self) -> Result<&Arc<Shared>> {
        self.shared.as_ref().ok_or_else(|| Error::Unsupported {
            what: "sending by RDMA from this rank".into(),
            why: format!("the first rank of {} does it for the host", process::host_name()),
        })
    }
}

fn open(buffer: &HostBuffer, options: &Options) -> Result<(Parts, Registration<Verbs>)> {
    options.check()?;
    if buffer.fill_state()? == Fill::Frozen {
        return Err(Error::Freeze { why: "it is frozen, and nobody may write into it by RDMA".into() });
    }
    let verbs = Arc::new(Verbs::open(options.device.as_deref())?);
    let port = Port::choose(&verbs, options.gid)?;
    let mail = Mail::new(&verbs, port)?;
    let sends = Arc::new(Completions::new(&verbs, REQUESTS)?);
    let receives = Arc::new(Receives::new(&verbs, TOLD, 64)?);
    let all = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
    let span = Span::new(buffer.as_ptr().as_ptr() as usize, buffer.len())?;
    owned::may_write(span)?;
    // Without the note that a user's has: freezing ends it.
    let registration = Registration::keeping(&verbs, span, all, Some(buffer.job.clone()))?;
    tracing::info!(device = verbs.name(), address = Port::show(port.address), "RDMA");
    Ok((Parts { verbs, port, mail, sends, receives }, registration))
}

/// A number that nobody else has.
fn random() -> u64 {
    let mut bytes = [0; 8];
    // Without it two jobs could take each other's letters for their own; the clock and the number of the process do as well.
    let read =
        std::fs::File::open("/dev/urandom").and_then(|mut f| std::io::Read::read_exact(&mut f, &mut bytes));
    match read {
        Ok(()) => u64::from_le_bytes(bytes),
        Err(_) => u64::from(std::process::id()) << 32 ^ Instant::now().elapsed().as_nanos() as u64,
    }
}

impl Shared {
    /// Answers other hosts, and counts what they tell, until it is told to stop.
    fn listen(&self, stop: &EventFd) {
        loop {
            if let Err(error) = self.hear() {
                tracing::error!(%error, "this host answers nobody any more");
                return;
            }
            let incoming = [
                self.links.mail().incoming().as_fd(),
                self.links.receives().completions().as_fd(),
                stop.as_fd(),
            ];
            let mut fds = incoming.map(|fd| PollFd::new(fd, PollFlags::POLLIN));
            let _ = poll(&mut fds, PollTimeout::NONE);
            if fds[2].any().unwrap_or(false) {
                return;
            }
        }
    }

    fn hear(&self) -> Result<()> {
        let (mail, receives) = (self.links.mail(), self.links.receives());
        mail.incoming().arm()?;
        receives.completions().arm()?;
        self.links.read_mail()?;
        let mut result = Ok(());
        let mut came = false;
        receives.completions().take(|completion| {
            if let Some(number) = completion.imm_data() {
                let number = u32::from_be(number) as usize;
                if let Some(count) = self.signals.counts.get(number) {
                    count.fetch_add(1, Ordering::Release);
                    came = true;
                }
            }
            // The connection that it came by is gone: so is the place, until it is given again.
            if let Err(error) = receives.give(completion.wr_id()) {
                result = Err(error);
            }
        })?;
        if came {
            drop(held(&self.signals.lock));
            self.signals.came.notify_all();
        }
        result
    }
}

impl Registrations for Shared {
    /// A peer's key for the buffer ends with the registration.
    fn end_for_freezing(&self, span: Span) -> std::result::Result<(), String> {
        if !self.span.overlaps(span) {
            return Ok(());
        }
        let registration = held(&self.segment).take();
        registration.map_or(Ok(()), |registration| registration.deregister().map_err(|e| e.to_string()))
    }
}

impl Signals {
    /// How often signal `number` has come.
    pub(super) fn count(&self, number: usize) -> u64 {
        self.counts[number].load(Ordering::Acquire)
    }

    /// Waits until it has come `times` times. `false`: the time is over.
    pub(super) fn wait(&self, number: usize, times: u64, timeout: Duration) -> bool {
        let until = Instant::now() + timeout;
        let mut lock = held(&self.lock);
        while self.count(number) < times {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            lock = self.came.wait_timeout(lock, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }
}

impl Drop for Fabric {
    fn drop(&mut self) {
        if let Some(stop) = &self.stop {
            let _ = stop.write(1);
        }
        if let Some(listener) = self.listener.take() {
            let _ = listener.join();
        }
    }
}

impl std::fmt::Debug for Fabric {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Fabric").field("host", &self.own).field("hosts", &self.hosts).finish_non_exhaustive()
    }
}
