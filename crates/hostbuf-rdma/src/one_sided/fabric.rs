//! Fabrics: the hosts of a job, connected for one buffer.

#![allow(unsafe_code)]

use std::sync::{Arc, Mutex};

use tracing::info_span;

use crate::buffer::carrier::{self, Carrier};
use crate::buffer::{Fill, HostBuffer};
use crate::error::{Error, Result};
use crate::job::{Collective, Hosts, all_or_none};
use crate::os::array::Array;
use crate::os::process;
use crate::rdma::connect::device_resources::DeviceResources;
use crate::rdma::connect::endpoint::Endpoint;
use crate::rdma::connect::endpoint_info::EndpointInfo;
use crate::rdma::connect::progress_thread::ProgressThread;
use crate::rdma::one_sided::fabric_state::{FabricState, frozen};
use crate::rdma::one_sided::signals::Signals;
use crate::rdma::options::FabricOptions;
use crate::rdma::verbs::work_request::RemoteSegment;
use crate::register::own_ranges::{self, FreezeObserver};
use crate::register::{Access, Probe, Registration, Span, Verbs};

/// The hosts of a job, connected so that each can write to and read from the others' parts of a buffer.
///
/// The first rank of each host does the I/O. On the other ranks every operation is [`Error::Unsupported`],
/// and in a forked child [`Error::Forked`].
pub struct Fabric {
    // Dropped before the state that it uses.
    _progress: Option<ProgressThread>,
    state: Option<Arc<FabricState>>,
    hosts: usize,
    own: usize,
}

/// The device and the registered memory of a host.
struct Opened {
    resources: DeviceResources,
    registration: Registration<Verbs>,
    scratch: Registration<Verbs>,
}

impl Fabric {
    /// Connects the hosts of `group` for `buffer`, which all of them have. Collective. Each connection is
    /// made by the first operation that needs it.
    ///
    /// # Errors
    /// On all ranks: [`Error::Unsupported`] if a host has no RDMA device with an active port;
    /// [`Error::Disagreed`] if the hosts' buffers differ; [`Error::Freeze`] for a frozen buffer;
    /// [`Error::Invalid`] for an option out of its range.
    ///
    /// # Safety
    /// The devices write to the buffer without the compiler's knowledge. While an operation is in progress,
    /// no reference exists to the memory that it writes: on the other host for a put or a `fetch_add`, on
    /// this host for a get or the result of a `fetch_add`. This includes references from the arena and the
    /// buffer, and those made from their pointers. It applies to the operations of all hosts, until the
    /// fabric is dropped on all of them.
    pub unsafe fn connect(
        group: &dyn Collective,
        buffer: &HostBuffer,
        options: FabricOptions,
    ) -> Result<Fabric> {
        let _span = info_span!("fabric", buffer = %buffer.name()).entered();
        let hosts = Hosts::of(group)?;
        buffer.compare(group, &hosts)?;
        let opened = if hosts.leads() { open(buffer, &options).map(Some) } else { Ok(None) };
        let opened = all_or_none(group, opened)?;
        let mut fabric = Fabric { _progress: None, state: None, hosts: hosts.count, own: hosts.index };
        let Some(opened) = opened else {
            all_or_none(group, Ok(()))?;
            return Ok(fabric);
        };
        let Opened { resources, registration, scratch } = opened;
        let span = Span::new(buffer.as_ptr().as_ptr() as usize, buffer.len())?;
        let memory = RemoteSegment { address: span.start() as u64, rkey: registration.handle().rkey() };
        let infos = EndpointInfo::new(resources.datagrams.address(), memory).exchange(&*hosts.leaders)?;
        let state = Arc::new(FabricState {
            group: infos[0].group,
            endpoint: Arc::new(Endpoint::new(resources, hosts.index, &infos, options)),
            signals: Arc::new(Signals::new()),
            own: hosts.index,
            parts: infos.iter().map(|info| info.memory).collect(),
            registration: Mutex::new(Some(registration)),
            scratch,
            span,
            buffer: buffer.clone(),
        });
        let registrations: Arc<dyn FreezeObserver> = state.clone();
        own_ranges::observe(Arc::downgrade(&registrations));
        let signals = state.signals.clone();
        let on_signal = move |signal| signals.notify(signal as usize);
        let progress = ProgressThread::start(&state.endpoint, on_signal, None);
        // A rank that began to freeze the buffer before `tell` has not ended this registration.
        let progress = progress.and_then(|progress| Ok(own_ranges::may_write(span).map(|()| progress)?));
        // No host sends a connect message before all can reply.
        fabric._progress = Some(all_or_none(group, progress)?);
        let carrier: Arc<dyn Carrier> = state.clone();
        carrier::offer(&carrier);
        fabric.state = Some(state);
        Ok(fabric)
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
    pub fn host(&self) -> usize {
        self.own
    }

    /// Returns the number of connections from and to this process. Two hosts have two connections if both
    /// began operations on each other, one if only one did, and none before that. In a forked child the
    /// number is 0.
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
        // An operation that is still in progress may keep the state alive, but `replicate` must not use it
        // any more.
        if let Some(state) = self.state.take().filter(|state| state.endpoint.is_owned()) {
            let carrier: Arc<dyn Carrier> = state;
            carrier::withdraw(&carrier);
        }
    }
}

fn open(buffer: &HostBuffer, options: &FabricOptions) -> Result<Opened> {
    if buffer.fill_state()? == Fill::Frozen {
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
    Ok(Opened { resources, registration, scratch })
}

impl std::fmt::Debug for Fabric {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Fabric").field("host", &self.own).field("hosts", &self.hosts).finish_non_exhaustive()
    }
}
