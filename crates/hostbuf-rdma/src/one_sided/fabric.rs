//! The hosts of a job, joined by RDMA.

#![allow(unsafe_code)]

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tracing::info_span;

use crate::buffer::carrier::{self, Carrier};
use crate::buffer::{Fill, HostBuffer};
use crate::error::{Error, Result};
use crate::job::{Collective, Hosts, all_or_none};
use crate::os::array::Array;
use crate::os::process;
use crate::rdma::connect::connections::Parts;
use crate::rdma::connect::endpoint::{Endpoint, Listener};
use crate::rdma::connect::endpoint_info::Card;
use crate::rdma::options::Options;
use crate::rdma::verbs::in_flight::deadline;
use crate::register::own_ranges::{self, FreezeObserver};
use crate::register::{Access, Probe, Registration, Span, Verbs};

/// How many signals each process has.
pub const SIGNALS: usize = 64;
/// Two more, of hostbuf's own: a piece of a buffer that is being replicated has come; no more of them will.
pub(crate) const PIECES: usize = SIGNALS;
pub(crate) const GAVE_UP: usize = SIGNALS + 1;
/// The hosts of a job, joined so that each can write into and read from the others' part of a buffer.
///
/// The process that leads its host, the first of its ranks, does the I/O. On the others every operation is
/// [`Error::Unsupported`]; in a child that it forks, [`Error::Forked`].
pub struct Fabric {
    // Before what it listens for.
    _listener: Option<Listener>,
    pub(crate) shared: Option<Arc<Shared>>,
    hosts: usize,
    own: usize,
}

/// What a host has of it.
pub(crate) struct Shared {
    /// The same on all hosts, and another one each time that hosts are joined.
    pub(crate) number: u64,
    pub(crate) endpoint: Arc<Endpoint>,
    pub(crate) signals: Arc<Signals>,
    pub(crate) own: usize,
    /// Each host's key for its part of the buffer.
    pub(crate) keys: Vec<u32>,
    pub(crate) segment: Mutex<Option<Registration<Verbs>>>,
    /// A word that nobody looks at.
    pub(crate) nowhere: Registration<Verbs>,
    pub(crate) span: Span,
    pub(crate) buffer: HostBuffer,
}

/// How often each signal has come, and who waits for one.
pub(crate) struct Signals {
    counts: [AtomicU64; SIGNALS + 2],
    lock: Mutex<()>,
    came: Condvar,
}

fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Fabric {
    /// Joins the hosts of `group` for `buffer`, which all of them have. Collective. Connections are made later, when the first
    /// operation wants one.
    ///
    /// # Errors
    /// On all ranks: [`Error::Unsupported`] where a host has no RDMA device that is up; [`Error::Disagreed`] when the hosts'
    /// buffers differ; [`Error::Freeze`] for a frozen buffer; [`Error::Invalid`] for options that make no sense.
    ///
    /// # Safety
    /// The devices write into the buffer behind the compiler's back: what an operation writes, on the other host (a put, an
    /// addition) or on this one (a get, what an addition finds), is referenced by nobody at the time: neither by a reference that
    /// the arena or the buffer gave nor by one that was made of its pointer. That holds for all that any host of the fabric
    /// begins, from here on until the fabric is gone on all hosts.
    pub unsafe fn connect(group: &dyn Collective, buffer: &HostBuffer, options: Options) -> Result<Fabric> {
        let _span = info_span!("fabric", buffer = %buffer.name()).entered();
        let hosts = Hosts::of(group)?;
        buffer.compare(group, &hosts)?;
        let opened = if hosts.leads() { open(buffer, &options).map(Some) } else { Ok(None) };
        let opened = all_or_none(group, opened)?;
        let mut fabric = Fabric { shared: None, _listener: None, hosts: hosts.count, own: hosts.index };
        let Some((parts, registration, nowhere)) = opened else {
            all_or_none(group, Ok(()))?;
            return Ok(fabric);
        };
        let span = Span::new(buffer.as_ptr().as_ptr() as usize, buffer.len())?;
        let cards = Card::exchange(&*hosts.leaders, &parts, registration.handle().rkey(), span.start())?;
        let shared = Arc::new(Shared {
            number: cards[0].number,
            endpoint: Arc::new(Endpoint::new(parts, hosts.index, &cards, options)),
            signals: Arc::new(Signals {
                counts: std::array::from_fn(|_| AtomicU64::new(0)),
                lock: Mutex::new(()),
                came: Condvar::new(),
            }),
            own: hosts.index,
            keys: cards.iter().map(|card| card.key).collect(),
            segment: Mutex::new(Some(registration)),
            nowhere,
            span,
            buffer: buffer.clone(),
        });
        let registrations: Arc<dyn FreezeObserver> = shared.clone();
        own_ranges::observe(Arc::downgrade(&registrations));
        let signals = shared.signals.clone();
        let listener = shared.endpoint.listen(move |number| signals.count_one(number as usize), None);
        // Who has begun to freeze the buffer before that was told of has not ended this registration.
        let listener = listener.and_then(|listener| Ok(own_ranges::may_write(span).map(|()| listener)?));
        // Nobody asks before all can answer.
        fabric._listener = Some(all_or_none(group, listener)?);
        let carrier: Arc<dyn Carrier> = shared.clone();
        carrier::offer(&carrier);
        fabric.shared = Some(shared);
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

    /// How many connections there are from and to this process: two queue pairs between two hosts that both began operations on
    /// each other, one where one did, and none before. 0 in a forked child.
    #[must_use]
    pub fn connections(&self) -> usize {
        let shared = self.shared.as_ref().filter(|shared| shared.endpoint.is_here());
        shared.map_or(0, |shared| shared.endpoint.links.count())
    }

    pub(crate) fn shared(&self) -> Result<&Arc<Shared>> {
        let shared = self.shared.as_ref().ok_or_else(|| Error::Unsupported {
            what: "sending by RDMA from this rank".into(),
            why: format!("the first rank of {} does it for the host", process::host_name()),
        })?;
        shared.endpoint.check_here()?;
        Ok(shared)
    }
}

impl Drop for Fabric {
    fn drop(&mut self) {
        // An operation that nobody has waited for may keep it alive; no buffer goes by it any more.
        if let Some(shared) = self.shared.take().filter(|shared| shared.endpoint.is_here()) {
            let carrier: Arc<dyn Carrier> = shared;
            carrier::withdraw(&carrier);
        }
    }
}

fn open(buffer: &HostBuffer, options: &Options) -> Result<(Parts, Registration<Verbs>, Registration<Verbs>)> {
    if buffer.fill_state()? == Fill::Frozen {
        return Err(Error::Freeze {
            why: "the buffer is frozen, and nobody may write into it by RDMA".into(),
        });
    }
    let parts = Parts::open(options)?;
    let all = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
    let span = Span::new(buffer.as_ptr().as_ptr() as usize, buffer.len())?;
    own_ranges::may_write(span)?;
    // Without the note that a user's has: freezing ends it.
    let registration = Registration::with_keepalive(&parts.verbs, span, all, buffer.segment.clone())?;
    let word = Arc::new(Array::new(1, |_| 0u64).map_err(Error::os("making room for a word"))?);
    let nowhere = Span::new(word.as_ptr() as usize, 8)?;
    let nowhere = Registration::with_keepalive(&parts.verbs, nowhere, Access::WRITE, word)?;
    Ok((parts, registration, nowhere))
}

impl FreezeObserver for Shared {
    fn prepare(&self, _: Span) -> std::result::Result<(), String> {
        Ok(())
    }

    /// A peer's key for the buffer ends with the registration, which has to be the same as long as the fabric is.
    fn commit(&self, span: Span) -> std::result::Result<(), String> {
        if !self.span.overlaps(span) {
            return Ok(());
        }
        let registration = held(&self.segment).take();
        registration.map_or(Ok(()), |registration| registration.deregister().map_err(|e| e.to_string()))
    }
}

impl Signals {
    fn count_one(&self, number: usize) {
        let Some(count) = self.counts.get(number) else { return };
        count.fetch_add(1, Ordering::Release);
        drop(held(&self.lock));
        self.came.notify_all();
    }

    /// How often signal `number` has come.
    pub(crate) fn count(&self, number: usize) -> u64 {
        self.counts[number].load(Ordering::Acquire)
    }

    /// Waits until what has come makes `ready` true. `false`: the time is over.
    pub(crate) fn wait_until(&self, timeout: Duration, ready: &dyn Fn() -> bool) -> bool {
        let until = deadline(timeout);
        let mut lock = held(&self.lock);
        while !ready() {
            let left = until
                .map_or(Duration::from_secs(3600), |until| until.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                return false;
            }
            lock = self.came.wait_timeout(lock, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }
}

impl std::fmt::Debug for Fabric {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Fabric").field("host", &self.own).field("hosts", &self.hosts).finish_non_exhaustive()
    }
}
