//! Fabrics: the hosts of a job, connected for one buffer.

#![allow(unsafe_code, reason = "peers access the buffer, which the caller has to allow")]

use std::sync::{Arc, Mutex};

use tracing::info_span;

use crate::connect::bootstrap::{Bootstrap, ByRef, agree};
use crate::connect::device_resources::DeviceResources;
use crate::connect::endpoint::Endpoint;
use crate::connect::endpoint_info::EndpointInfo;
use crate::connect::progress_thread::ProgressThread;
use crate::one_sided::fabric_state::{FabricState, frozen};
use crate::one_sided::signal::Signal;
use crate::one_sided::signal_counters::SignalCounters;
use crate::options::FabricOptions;
use crate::verbs::work_request::{RemoteKey, RemoteSegment};
use hostbuf::carrier::{self, Carrier};
use hostbuf::error::{Bytes, Error, Result};
use hostbuf::job::{Collective, HostIndex, Hosts, all_or_none};
use hostbuf::{FillState, HostBuffer};
use hostbuf_os::array::Array;
use hostbuf_os::process;
use hostbuf_register::own_ranges::{self, FreezeObserver};
use hostbuf_register::{Access, Probe, Registration, Span, Verbs};

/// The hosts of a job, connected so that each can write to and read from the others' parts of a
/// buffer.
///
/// The first rank of each host does the I/O. On the other ranks every operation is
/// [`Error::Unsupported`], and in a forked child [`Error::Forked`](hostbuf_register::Error::Forked).
pub struct Fabric {
    // Dropped before the state that it uses.
    _progress: Option<ProgressThread>,
    state: Option<Arc<FabricState>>,
    hosts: usize,
    own: HostIndex,
}

/// The device and the registered memory of a host.
struct OpenedFabric {
    resources: DeviceResources,
    registration: Registration<Verbs>,
    scratch: Registration<Verbs>,
}

impl Fabric {
    /// Connects the hosts of `group` for `buffer`, which all of them have. Collective. Each
    /// connection is made by the first operation that needs it.
    ///
    /// # Errors
    /// On all ranks: [`Error::Unsupported`] if a host has no RDMA device with an active port;
    /// [`Error::Disagreed`] if the hosts' buffers differ; [`Error::Freeze`] for a frozen buffer;
    /// [`Error::Invalid`] for an option out of its range.
    ///
    /// # Safety
    /// The devices write to the buffer without the compiler's knowledge. While an operation is in
    /// progress, no reference exists to the memory that it writes: on the other host for a put or a
    /// `fetch_add`, on this host for a get or the result of a `fetch_add`. This includes references
    /// from the arena and the buffer, and those made from their pointers. It applies to the
    /// operations of all hosts, until the fabric is dropped on all of them.
    pub unsafe fn connect(
        group: &dyn Collective,
        buffer: &HostBuffer,
        options: FabricOptions,
    ) -> Result<Fabric> {
        let _span = info_span!("fabric", buffer = %buffer.name()).entered();
        let hosts = Hosts::new(group)?;
        buffer.compare(group, &hosts)?;
        let opened = if hosts.leads() { open(buffer, &options).map(Some) } else { Ok(None) };
        let Some(opened) = all_or_none(group, opened)? else {
            all_or_none(group, Ok(()))?;
            return Ok(Fabric { _progress: None, state: None, hosts: hosts.count, own: hosts.index });
        };
        let (state, progress) = begin(&ByRef(&*hosts.leaders), opened, buffer, options)?;
        Ok(Fabric::with_state(state, all_or_none(group, progress)?))
    }

    /// Connects the processes of `bootstrap`, which need neither MPI nor a launcher in common. Each
    /// process is a host of the fabric, with its own buffer. All buffers have the same length, but
    /// may stand at different addresses: operations name regions by their offsets. All processes
    /// call it. Each connection is made by the first operation that needs it.
    ///
    /// ```no_run
    /// # use std::{net::{SocketAddr, TcpListener}, time::Duration};
    /// # use hostbuf_rdma::{Fabric, FabricOptions, HostIndex, PeerId, Signal, TcpBootstrap};
    /// # use hostbuf::{HostBuffer, BufferOptions, job::Solo};
    /// # fn process(index: usize, root: SocketAddr) -> hostbuf::Result<()> {
    /// let timeout = Duration::from_secs(30);
    /// let bootstrap = match index {
    ///     0 => TcpBootstrap::listen(TcpListener::bind(root).expect("a free port"), 2, timeout)?,
    ///     _ => TcpBootstrap::join(PeerId(index), 2, root, timeout)?,
    /// };
    /// let buffer = HostBuffer::allocate(&Solo, BufferOptions::new(1 << 20))?;
    /// // SAFETY: no references into the buffer exist while it is written.
    /// let options = FabricOptions::default();
    /// let fabric = unsafe { Fabric::connect_with(&bootstrap, &buffer, options)? };
    /// if index == 0 {
    ///     fabric.put_signal(0..4096, HostIndex(1), Signal(0))?.wait()?;
    /// } else {
    ///     assert!(fabric.wait_signal(Signal(0), 1, timeout)?);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Disagreed`], on all processes, if the lengths of the buffers differ.
    /// [`Error::Unsupported`] on a process without an RDMA device with an active port,
    /// [`Error::Freeze`] for a frozen buffer, [`Error::Invalid`] for an option out of its range,
    /// and [`Error::Elsewhere`] on the other processes.
    ///
    /// # Safety
    /// The contract of [`connect`](Fabric::connect).
    pub unsafe fn connect_with<B: Bootstrap + ?Sized>(
        bootstrap: &B,
        buffer: &HostBuffer,
        options: FabricOptions,
    ) -> Result<Fabric> {
        let _span = info_span!("fabric", buffer = %buffer.name()).entered();
        let bootstrap = &ByRef(bootstrap);
        let opened = agree(bootstrap, open(buffer, &options))?;
        let (state, progress) = begin(bootstrap, opened, buffer, options)?;
        Ok(Fabric::with_state(state, agree(bootstrap, progress)?))
    }

    fn with_state(state: Arc<FabricState>, progress: ProgressThread) -> Fabric {
        let carrier: Arc<dyn Carrier> = state.clone();
        carrier::offer(&carrier);
        let (hosts, own) = (state.parts.len(), state.own);
        Fabric { _progress: Some(progress), state: Some(state), hosts, own }
    }

    /// Returns whether hosts can be connected here, and the reason if not.
    #[must_use]
    pub fn probe() -> Probe {
        Verbs::probe()
    }

    /// Returns the number of hosts.
    #[must_use]
    pub fn hosts(&self) -> usize {
        self.hosts
    }

    /// Returns the index of this host.
    #[must_use]
    pub fn host(&self) -> HostIndex {
        self.own
    }

    /// Returns the number of connections from and to this process. Two hosts have two connections
    /// if both began operations on each other, one if only one did, and none before that. In a
    /// forked child the number is 0.
    #[must_use]
    pub fn connections(&self) -> usize {
        let state = self.state.as_ref().filter(|state| state.endpoint.is_owned());
        state.map_or(0, |state| state.endpoint.connections.count())
    }

    pub(crate) fn state(&self) -> Result<&Arc<FabricState>> {
        let state = self.state.as_ref().ok_or_else(|| Error::Unsupported {
            what: "sending by RDMA from this rank".into(),
            why: format!("the first rank of {} does the I/O of its host", process::host_name()),
        })?;
        state.endpoint.check_owner()?;
        Ok(state)
    }
}

impl Drop for Fabric {
    fn drop(&mut self) {
        // An operation that is still in progress may keep the state alive, but `replicate` must not
        // use it any more.
        if let Some(state) = self.state.take().filter(|state| state.endpoint.is_owned()) {
            let carrier: Arc<dyn Carrier> = state;
            carrier::withdraw(&carrier);
        }
    }
}

/// Exchanges the endpoints, and starts the thread that answers connect messages. No host sends any
/// before the caller has brought all hosts to one result of that.
fn begin(
    bootstrap: &dyn Bootstrap,
    opened: OpenedFabric,
    buffer: &HostBuffer,
    options: FabricOptions,
) -> Result<(Arc<FabricState>, Result<ProgressThread>)> {
    let OpenedFabric { resources, registration, scratch } = opened;
    let span = Span::new(buffer.as_ptr().as_ptr() as usize, buffer.len())?;
    let memory =
        RemoteSegment { address: span.start() as u64, rkey: RemoteKey(registration.handle().rkey()) };
    let infos = EndpointInfo::new(resources.datagrams.address(), memory, span.len()).exchange(bootstrap)?;
    check_lengths(&infos)?;
    let own = HostIndex(bootstrap.index().0);
    let state = Arc::new(FabricState {
        group: infos[0].group,
        endpoint: Arc::new(Endpoint::new(resources, own.into(), &infos, options)),
        signals: Arc::new(SignalCounters::new()),
        own,
        parts: infos.iter().map(|info| info.memory).collect(),
        registration: Mutex::new(Some(registration)),
        scratch,
        span,
        buffer: buffer.clone(),
    });
    let registrations: Arc<dyn FreezeObserver> = state.clone();
    own_ranges::observe(Arc::downgrade(&registrations));
    let signals = state.signals.clone();
    let on_signal = move |signal| signals.notify(Signal::from_immediate(signal));
    let progress = ProgressThread::start(&state.endpoint, on_signal, None);
    // A rank that began to freeze the buffer before `tell` has not ended this registration.
    let progress = progress.and_then(|progress| Ok(own_ranges::may_write(span).map(|()| progress)?));
    Ok((state, progress))
}

fn check_lengths(infos: &[EndpointInfo]) -> Result<()> {
    let first = infos[0].memory_bytes;
    match infos.iter().position(|info| info.memory_bytes != first) {
        None => Ok(()),
        Some(rank) => Err(Error::Disagreed {
            host: infos[rank].host.clone(),
            rank,
            why: format!(
                "its buffer is {} long, and that of rank 0 on {} is {}: allocate buffers of one size",
                Bytes(infos[rank].memory_bytes),
                infos[0].host,
                Bytes(first)
            ),
        }),
    }
}

fn open(buffer: &HostBuffer, options: &FabricOptions) -> Result<OpenedFabric> {
    if buffer.fill_state()? == FillState::Frozen {
        return Err(frozen());
    }
    let resources = DeviceResources::open(options)?;
    let access = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
    let span = Span::new(buffer.as_ptr().as_ptr() as usize, buffer.len())?;
    own_ranges::may_write(span)?;
    // It is not recorded as a user's registration is, since freezing ends it.
    let registration = Registration::with_keepalive(&resources.verbs, span, access, buffer.keepalive())?;
    let word = Arc::new(Array::new(1, |_| 0u64).map_err(Error::os("allocating a word"))?);
    let scratch = Span::new(word.as_ptr() as usize, 8)?;
    let scratch = Registration::with_keepalive(&resources.verbs, scratch, Access::WRITE, word)?;
    Ok(OpenedFabric { resources, registration, scratch })
}

impl std::fmt::Debug for Fabric {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Fabric")
            .field("host", &self.own.0)
            .field("hosts", &self.hosts)
            .finish_non_exhaustive()
    }
}
