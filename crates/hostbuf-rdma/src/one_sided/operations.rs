//! What one host does to another's part of the buffer: put, get, add, signal.

#![allow(unsafe_code)]

use std::ops::RangeBounds;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::buffer::Fill;
use crate::error::{Error, Failure, Result};
use crate::rdma::connect::pending::Pending;
use crate::rdma::one_sided::fabric::{Fabric, SIGNALS, Shared};
use crate::rdma::verbs::in_flight::deadline;
use crate::rdma::verbs::queue_pair::What;
use crate::span::Span;

/// The most bytes of one request; a longer region is sent in several.
const LONGEST: usize = 1 << 30;

impl Fabric {
    /// Writes this host's bytes of `region` into the same region of `host`. When the operation is over the bytes have been
    /// taken from here, and are on their way in order: what is put to the same host later arrives later. That they are
    /// visible there is known by a [signal](Fabric::put_signal), or by what the hosts agree on otherwise after
    /// [`flush`](Fabric::flush).
    ///
    /// # Errors
    /// [`Error::Invalid`] for a region that is empty or not inside the buffer, or no such host; [`Error::Freeze`] when the buffer
    /// is frozen; [`Error::Peer`] when the host cannot be reached; [`Error::Unsupported`] on ranks that do no I/O.
    pub fn put(&self, region: impl RangeBounds<usize>, host: usize) -> Result<Pending> {
        let (shared, span) = self.checked(region, host)?;
        let pending = begin(shared, "put", host, span, |address, key, _| What::Write { address, key })?;
        Ok(pending.keeping(shared.clone()))
    }

    /// Writes many regions, in their order: posted together, and over when all are. For many small ones, of which each by itself
    /// would cost more to begin and to wait for than to send.
    ///
    /// # Errors
    /// As [`put`](Fabric::put). All regions are looked at before anything is sent.
    pub fn put_many<R: RangeBounds<usize>>(
        &self,
        regions: impl IntoIterator<Item = R>,
        host: usize,
    ) -> Result<Pending> {
        let shared = self.writable(host)?;
        let key = (shared.keys[host], shared.local_key()?);
        let mut steps = Vec::new();
        for region in regions {
            let span = shared.buffer.region(region)?;
            pieces(span, |at, length, _| {
                steps.push((What::Write { address: at as u64, key: key.0 }, (at, length, key.1)));
            });
        }
        let mut pending = Pending::to(&shared.endpoint, host, "put")?;
        // SAFETY: as in `begin`.
        unsafe { pending.post_all(&steps)? };
        Ok(pending.keeping(shared.clone()))
    }

    /// The same as [`put`](Fabric::put), and then counts signal number `signal` of `host`, where [`wait_signal`](Fabric::wait_signal) waits for it: when
    /// it has come, the bytes of this put are visible there, and those of all earlier puts of this host to that one, but for those that
    /// have failed: each says so itself, to whoever waits for it.
    ///
    /// # Errors
    /// As [`put`](Fabric::put); [`Error::Invalid`] for a signal that is not below [`SIGNALS`](crate::rdma::SIGNALS).
    pub fn put_signal(&self, region: impl RangeBounds<usize>, host: usize, signal: usize) -> Result<Pending> {
        check_signal(signal)?;
        let (shared, span) = self.checked(region, host)?;
        let pending = put_and_tell(shared, "put", host, span, signal as u32)?;
        Ok(pending.keeping(shared.clone()))
    }

    /// Reads the bytes of `region` of `host` into the same region here. When the operation is over they are here.
    ///
    /// # Errors
    /// As [`put`](Fabric::put).
    pub fn get(&self, region: impl RangeBounds<usize>, host: usize) -> Result<Pending> {
        let (shared, span) = self.checked(region, host)?;
        let pending = begin(shared, "get", host, span, |address, key, _| What::Read { address, key })?;
        Ok(pending.keeping(shared.clone()))
    }

    /// Adds to the word at `offset` of `host`, and puts what it was before into the word at `offset` here. Atomic among these
    /// operations, not with what processors do.
    ///
    /// # Errors
    /// As [`put`](Fabric::put); [`Error::Invalid`] for an offset that is no multiple of 8.
    pub fn fetch_add(&self, offset: usize, host: usize, add: u64) -> Result<Pending> {
        if !offset.is_multiple_of(8) {
            return Err(Error::invalid(format!("fetch_add at {offset}, which is no multiple of 8")));
        }
        let (shared, span) = self.checked(offset..offset.saturating_add(8), host)?;
        let pending =
            begin(shared, "fetch_add", host, span, |address, key, _| What::FetchAdd { address, key, add })?;
        Ok(pending.keeping(shared.clone()))
    }

    /// Waits until all that this host has begun towards `host` is over on this side: its bytes here may be changed again.
    ///
    /// # Errors
    /// [`Error::Invalid`] when there is no such host; [`Error::Peer`] when the time is over. What failed, the operation itself
    /// says.
    pub fn flush_local(&self, host: usize, timeout: Duration) -> Result<()> {
        let shared = self.shared()?;
        self.check_host(host)?;
        let flights = &shared.endpoint.flights;
        match flights.wait(deadline(timeout), || flights.under_way(host) == 0)? {
            true => Ok(()),
            false => Err(Error::Peer { host, doing: "flush".into(), failure: Failure::Timeout }),
        }
    }

    /// The same, and waits until what it wrote is in the memory of `host`, where processors there see it: by reading a word
    /// there, which the device and the bus answer behind all writes. It tells them nothing: that is what signals are for.
    ///
    /// # Errors
    /// As [`flush_local`](Fabric::flush_local); [`Error::Peer`] when `host` cannot be reached; [`Error::Freeze`] when the buffer
    /// is frozen.
    pub fn flush(&self, host: usize, timeout: Duration) -> Result<()> {
        let until = deadline(timeout);
        self.flush_local(host, timeout)?;
        let shared = self.writable(host)?;
        let word = shared.nowhere.span();
        let mut reading = Pending::to_until(&shared.endpoint, host, "flush", until)?;
        let what = What::Read { address: shared.span.start() as u64, key: shared.keys[host] };
        let local = (word.start(), word.len() as u32, shared.nowhere.handle().lkey());
        // SAFETY: a word that the registration keeps, which the operation keeps, and that nobody looks at.
        unsafe { reading.post(what, local)? };
        let mut reading = reading.keeping(shared.clone());
        match reading.wait_timeout(
            until.map_or(Duration::MAX, |until| until.saturating_duration_since(Instant::now())),
        )? {
            true => Ok(()),
            false => Err(Error::Peer { host, doing: "flush".into(), failure: Failure::Timeout }),
        }
    }

    /// How often signal number `signal` has come to this host.
    ///
    /// # Errors
    /// [`Error::Invalid`], [`Error::Unsupported`].
    pub fn signals(&self, signal: usize) -> Result<u64> {
        check_signal(signal)?;
        Ok(self.shared()?.signals.count(signal))
    }

    /// Waits until signal number `signal` has come `times` times since the hosts were joined. `false`: the time is over.
    ///
    /// # Errors
    /// [`Error::Invalid`], [`Error::Unsupported`].
    pub fn wait_signal(&self, signal: usize, times: u64, timeout: Duration) -> Result<bool> {
        check_signal(signal)?;
        let signals = &self.shared()?.signals;
        Ok(signals.wait_until(timeout, &|| signals.count(signal) >= times))
    }

    fn checked(&self, region: impl RangeBounds<usize>, host: usize) -> Result<(&Arc<Shared>, Span)> {
        let shared = self.writable(host)?;
        Ok((shared, shared.buffer.region(region)?))
    }

    fn check_host(&self, host: usize) -> Result<()> {
        match host < self.hosts() {
            true => Ok(()),
            false => Err(Error::invalid(format!("host {host}: there are {}, counted from 0", self.hosts()))),
        }
    }

    /// What is needed for operations on `host`, which there is, on a buffer that is not frozen.
    fn writable(&self, host: usize) -> Result<&Arc<Shared>> {
        let shared = self.shared()?;
        self.check_host(host)?;
        if shared.buffer.fill_state()? == Fill::Frozen {
            return Err(Error::Freeze {
                why: "the buffer is frozen, and nobody may write into it by RDMA".into(),
            });
        }
        Ok(shared)
    }
}

/// Writes `span` there, and then tells `number`.
pub(crate) fn put_and_tell(
    shared: &Shared,
    doing: &'static str,
    host: usize,
    span: Span,
    number: u32,
) -> Result<Pending> {
    begin(shared, doing, host, span, |address, key, last| match last {
        true => What::WriteAndTell { address, key, number },
        false => What::Write { address, key },
    })
}

fn begin(
    shared: &Shared,
    doing: &'static str,
    host: usize,
    span: Span,
    what: impl Fn(u64, u32, bool) -> What,
) -> Result<Pending> {
    // The key may have ended since: then the buffer is frozen.
    let key = shared.local_key()?;
    let mut steps = Vec::with_capacity(1);
    pieces(span, |at, length, last| {
        steps.push((what(at as u64, shared.keys[host], last), (at, length, key)));
    });
    let mut pending = Pending::to(&shared.endpoint, host, doing)?;
    // SAFETY: the buffer's own memory, registered as long as the fabric lives or the buffer is not frozen: a request on
    // memory that is not registered any more fails at the device.
    unsafe { pending.post_all(&steps)? };
    Ok(pending)
}

/// The pieces of a span that one request each may have: where, how long, and whether it is the last one.
fn pieces(span: Span, mut each: impl FnMut(usize, u32, bool)) {
    let mut at = span.start();
    while at < span.end() {
        let length = LONGEST.min(span.end() - at);
        each(at, length as u32, at + length == span.end());
        at += length;
    }
}

fn check_signal(signal: usize) -> Result<()> {
    if signal < SIGNALS {
        return Ok(());
    }
    Err(Error::invalid(format!("signal {signal}: there are {SIGNALS}, counted from 0")))
}

impl Shared {
    pub(crate) fn local_key(&self) -> Result<u32> {
        let segment = self.segment.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        segment.as_ref().map(|registration| registration.handle().lkey()).ok_or_else(|| Error::Freeze {
            why: "the buffer is frozen, and nobody may write into it by RDMA".into(),
        })
    }
}
