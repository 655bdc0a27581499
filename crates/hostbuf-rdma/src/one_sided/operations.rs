//! The operations of a fabric: put, get, `fetch_add`, flush and signals.

#![allow(unsafe_code, reason = "posts operations on memory that other processes access")]

use std::ops::RangeBounds;
use std::sync::Arc;
use std::time::Duration;

use crate::connect::pending::Pending;
use crate::limits::MAX_REQUEST_BYTES;
use crate::one_sided::fabric::Fabric;
use crate::one_sided::fabric_state::{FabricState, frozen};
use crate::one_sided::offset::Offset;
use crate::one_sided::signal::{SIGNALS, Signal};
use crate::sync::{deadline, time_left};
use crate::verbs::work_request::{LocalKey, LocalSegment, Operation, RemoteSegment};
use hostbuf::FillState;
use hostbuf::error::{Error, Failure, Result};
use hostbuf::job::HostIndex;
use hostbuf_register::Span;

impl Fabric {
    /// Writes this host's bytes of `region` to the same region of `host`. When the operation is
    /// complete, the bytes here may be changed. Puts to one host arrive in the order in which they
    /// were begun. A [signal](Fabric::put_signal) tells the other host that the bytes are visible
    /// there; or the hosts agree on that by other means after a [`flush`](Fabric::flush).
    ///
    /// # Errors
    /// [`Error::Invalid`] for a region that is empty or not inside the buffer, or a host that does
    /// not exist; [`Error::Freeze`] if the buffer is frozen; [`Error::Peer`] if the host cannot be
    /// reached; [`Error::Unsupported`] on ranks that do no I/O.
    pub fn put(&self, region: impl RangeBounds<usize>, host: HostIndex) -> Result<Pending> {
        let (state, span) = self.checked(region, host)?;
        let pending = begin(state, "put", host, span, |remote, _| Operation::Write(remote))?;
        Ok(pending.with_keepalive(state.clone()))
    }

    /// Writes many regions, in their order, as one operation. For many small regions this is much
    /// cheaper than one [`put`](Fabric::put) each.
    ///
    /// # Errors
    /// The errors of [`put`](Fabric::put). All regions are checked before anything is sent.
    pub fn put_many<R: RangeBounds<usize>>(
        &self,
        regions: impl IntoIterator<Item = R>,
        host: HostIndex,
    ) -> Result<Pending> {
        let state = self.writable(host)?;
        let lkey = state.lkey()?;
        let mut requests = Vec::new();
        for region in regions {
            for_each_request(state.buffer.region(region)?, lkey, |local, _| {
                requests.push((Operation::Write(state.remote(host, local.address)), local));
            });
        }
        let mut pending = Pending::new(&state.endpoint, host.into(), "put")?;
        // SAFETY: as in `begin`.
        unsafe { pending.post_all(&requests)? };
        Ok(pending.with_keepalive(state.clone()))
    }

    /// Writes `region` like [`put`](Fabric::put), and then increments the signal `signal` of
    /// `host`, on which [`wait_signal`](Fabric::wait_signal) waits there. When the signal arrives,
    /// the bytes of this put are visible on `host`, and so are those of all earlier puts of this
    /// host, except for puts that failed.
    ///
    /// ```
    /// # use hostbuf_rdma::{Fabric, HostIndex, Signal};
    /// # fn tell(fabric: &Fabric) -> hostbuf::Result<()> {
    /// fabric.put_signal(0..4096, HostIndex(1), Signal(0))?.wait()
    /// # }
    /// ```
    ///
    /// Hosts and signals have types of their own, so exchanging them does not compile:
    ///
    /// ```compile_fail
    /// # use hostbuf_rdma::{Fabric, HostIndex, Signal};
    /// # fn tell(fabric: &Fabric) -> hostbuf::Result<()> {
    /// fabric.put_signal(0..4096, Signal(0), HostIndex(1))?.wait()
    /// # }
    /// ```
    ///
    /// # Errors
    /// The errors of [`put`](Fabric::put), and [`Error::Invalid`] for a signal that is not below
    /// [`SIGNALS`](crate::SIGNALS).
    pub fn put_signal(
        &self,
        region: impl RangeBounds<usize>,
        host: HostIndex,
        signal: Signal,
    ) -> Result<Pending> {
        check_signal(signal)?;
        let (state, span) = self.checked(region, host)?;
        let pending = put_with_signal(state, "put", host, span, signal)?;
        Ok(pending.with_keepalive(state.clone()))
    }

    /// Reads the bytes of `region` of `host` into the same region here. When the operation is
    /// complete, they are here.
    ///
    /// # Errors
    /// The errors of [`put`](Fabric::put).
    pub fn get(&self, region: impl RangeBounds<usize>, host: HostIndex) -> Result<Pending> {
        let (state, span) = self.checked(region, host)?;
        let pending = begin(state, "get", host, span, |remote, _| Operation::Read(remote))?;
        Ok(pending.with_keepalive(state.clone()))
    }

    /// Adds `add` to the 64-bit word at `offset` of `host`, and writes its previous value to the
    /// word at `offset` here. It is atomic with respect to other calls of `fetch_add`, but not to
    /// processors.
    ///
    /// ```
    /// # use hostbuf_rdma::{Fabric, HostIndex, Offset};
    /// # fn count(fabric: &Fabric) -> hostbuf::Result<()> {
    /// fabric.fetch_add(Offset(4096), HostIndex(1), 8)?.wait()
    /// # }
    /// ```
    ///
    /// An operand in the place of the offset does not compile:
    ///
    /// ```compile_fail
    /// # use hostbuf_rdma::{Fabric, HostIndex, Offset};
    /// # fn count(fabric: &Fabric) -> hostbuf::Result<()> {
    /// fabric.fetch_add(8, HostIndex(1), Offset(4096))?.wait()
    /// # }
    /// ```
    ///
    /// # Errors
    /// The errors of [`put`](Fabric::put), and [`Error::Invalid`] for an offset that is not a
    /// multiple of 8.
    pub fn fetch_add(&self, offset: Offset, host: HostIndex, add: u64) -> Result<Pending> {
        if !offset.0.is_multiple_of(8) {
            return Err(Error::invalid(format!(
                "invalid offset {offset} for fetch_add: expected a multiple of 8"
            )));
        }
        let (state, span) = self.checked(offset.0..offset.0.saturating_add(8), host)?;
        let operation = |remote, _| Operation::FetchAdd { remote, add };
        let pending = begin(state, "fetch_add", host, span, operation)?;
        Ok(pending.with_keepalive(state.clone()))
    }

    /// Waits until all operations on `host` are complete on this side: the bytes here may be
    /// changed again.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the host does not exist; [`Error::Peer`] after `timeout`. A failed
    /// operation reports its error through its own [`Pending`].
    pub fn flush_local(&self, host: HostIndex, timeout: Duration) -> Result<()> {
        let state = self.state()?;
        self.check_host(host)?;
        let in_flight = &state.endpoint.in_flight;
        match in_flight.wait(deadline(timeout), || in_flight.in_progress(host.into()) == 0)? {
            true => Ok(()),
            false => Err(Error::Peer { host: host.0, doing: "flush".into(), failure: Failure::Timeout }),
        }
    }

    /// Waits until all operations on `host` are complete, and the bytes that they wrote are visible
    /// to processors there. It reads a word of the other host, which its device and bus deliver
    /// after all earlier writes. The other host is not notified; a [signal](Fabric::put_signal)
    /// does that.
    ///
    /// # Errors
    /// The errors of [`flush_local`](Fabric::flush_local); [`Error::Peer`] if the host cannot be
    /// reached; [`Error::Freeze`] if the buffer is frozen.
    pub fn flush(&self, host: HostIndex, timeout: Duration) -> Result<()> {
        let deadline = deadline(timeout);
        self.flush_local(host, timeout)?;
        let state = self.writable(host)?;
        let mut read = Pending::new_until(&state.endpoint, host.into(), "flush", deadline)?;
        // SAFETY: nothing reads the scratch word. The state keeps it registered, and the operation
        // keeps the state.
        unsafe { read.post(Operation::Read(state.part(host)), state.scratch())? };
        let mut read = read.with_keepalive(state.clone());
        match read.wait_timeout(time_left(deadline))? {
            true => Ok(()),
            false => Err(Error::Peer { host: host.0, doing: "flush".into(), failure: Failure::Timeout }),
        }
    }

    /// Returns the number of times that `signal` has arrived at this host.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a signal that is not below [`SIGNALS`](crate::SIGNALS);
    /// [`Error::Unsupported`] on ranks that do no I/O.
    pub fn signals(&self, signal: Signal) -> Result<u64> {
        check_signal(signal)?;
        Ok(self.state()?.signals.count(signal))
    }

    /// Waits until `signal` has arrived `times` times since the hosts were connected. Returns
    /// `false` after `timeout`.
    ///
    /// # Errors
    /// The errors of [`signals`](Fabric::signals).
    pub fn wait_signal(&self, signal: Signal, times: u64, timeout: Duration) -> Result<bool> {
        check_signal(signal)?;
        let signals = &self.state()?.signals;
        Ok(signals.wait_until(timeout, &|| signals.count(signal) >= times))
    }

    fn checked(&self, region: impl RangeBounds<usize>, host: HostIndex) -> Result<(&Arc<FabricState>, Span)> {
        let state = self.writable(host)?;
        Ok((state, state.buffer.region(region)?))
    }

    fn check_host(&self, host: HostIndex) -> Result<()> {
        match host.0 < self.hosts() {
            true => Ok(()),
            false => Err(Error::invalid(format!(
                "invalid host {}: the fabric has {} hosts, counted from 0",
                host.0,
                self.hosts()
            ))),
        }
    }

    /// Returns the state after checking that `host` exists and the buffer is not frozen.
    fn writable(&self, host: HostIndex) -> Result<&Arc<FabricState>> {
        let state = self.state()?;
        self.check_host(host)?;
        match state.buffer.fill_state()? {
            FillState::Frozen => Err(frozen()),
            _ => Ok(state),
        }
    }
}

/// Writes `span` to `host`, and then increments `signal` there.
pub(crate) fn put_with_signal(
    state: &FabricState,
    name: &'static str,
    host: HostIndex,
    span: Span,
    signal: Signal,
) -> Result<Pending> {
    let immediate = signal.to_immediate();
    begin(state, name, host, span, |remote, is_last| match is_last {
        true => Operation::WriteWithImmediate { remote, immediate },
        false => Operation::Write(remote),
    })
}

/// Posts the requests for `span`. `operation` makes each from its remote memory, and knows the last
/// one.
fn begin(
    state: &FabricState,
    name: &'static str,
    host: HostIndex,
    span: Span,
    operation: impl Fn(RemoteSegment, bool) -> Operation,
) -> Result<Pending> {
    let lkey = state.lkey()?;
    let mut requests = Vec::with_capacity(1);
    for_each_request(span, lkey, |local, is_last| {
        requests.push((operation(state.remote(host, local.address), is_last), local));
    });
    let mut pending = Pending::new(&state.endpoint, host.into(), name)?;
    // SAFETY: the buffer's own memory, which stays registered until the fabric is gone or the
    // buffer is frozen. After that the device fails the request, since the key is not valid any
    // more.
    unsafe { pending.post_all(&requests)? };
    Ok(pending)
}

/// Divides `span` into segments for one request each, and tells `each` which is the last one.
fn for_each_request(span: Span, lkey: LocalKey, mut each: impl FnMut(LocalSegment, bool)) {
    let mut address = span.start();
    while address < span.end() {
        let length = MAX_REQUEST_BYTES.min(span.end() - address);
        let segment = LocalSegment { address, length: length as u32, lkey };
        each(segment, address + length == span.end());
        address += length;
    }
}

fn check_signal(signal: Signal) -> Result<()> {
    if signal.0 < SIGNALS {
        return Ok(());
    }
    Err(Error::invalid(format!("invalid signal {signal}: there are {SIGNALS} signals, counted from 0")))
}
