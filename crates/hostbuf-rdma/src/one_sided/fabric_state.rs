//! A host's part of a fabric.

use std::sync::{Arc, Mutex};

use crate::connect::endpoint::Endpoint;
use crate::connect::endpoint_info::GroupId;
use crate::one_sided::signal_counters::SignalCounters;
use crate::sync::lock;
use crate::verbs::work_request::{LocalKey, LocalSegment, RemoteSegment};
use hostbuf::HostBuffer;
use hostbuf::error::{Error, Result};
use hostbuf::job::HostIndex;
use hostbuf_register::own_ranges::FreezeObserver;
use hostbuf_register::{Registration, Span, Verbs};

/// The state of a fabric on the process that does the I/O of its host.
pub(crate) struct FabricState {
    pub(crate) group: GroupId,
    pub(crate) endpoint: Arc<Endpoint>,
    pub(crate) signals: Arc<SignalCounters>,
    /// The index of this host.
    pub(crate) own: HostIndex,
    /// The part of the buffer of each host.
    pub(crate) parts: Vec<RemoteSegment>,
    /// The registration of this host's part, until the buffer is frozen.
    pub(crate) registration: Mutex<Option<Registration<Verbs>>>,
    /// A word for the results of reads that nobody uses.
    pub(crate) scratch: Registration<Verbs>,
    pub(crate) span: Span,
    pub(crate) buffer: HostBuffer,
}

/// Returns the error of an operation on a frozen buffer.
pub(crate) fn frozen() -> Error {
    Error::Freeze { why: "the buffer is frozen: RDMA cannot write to it".into() }
}

impl FabricState {
    /// Returns the local key of this host's part.
    ///
    /// # Errors
    /// [`Error::Freeze`] if the buffer is frozen, which has ended the registration.
    pub(crate) fn lkey(&self) -> Result<LocalKey> {
        let registration = lock(&self.registration);
        registration.as_ref().map(|registration| LocalKey(registration.handle().lkey())).ok_or_else(frozen)
    }

    /// Returns the part of the buffer of `host`.
    pub(crate) fn part(&self, host: HostIndex) -> RemoteSegment {
        self.parts[host.0]
    }

    /// Returns the memory of `host` that corresponds to `address` here.
    pub(crate) fn remote(&self, host: HostIndex, address: usize) -> RemoteSegment {
        self.part(host).offset(address - self.span.start())
    }

    pub(crate) fn scratch(&self) -> LocalSegment {
        let span = self.scratch.span().expect("the scratch word is host memory");
        let lkey = LocalKey(self.scratch.handle().lkey());
        LocalSegment { address: span.start(), length: span.len() as u32, lkey }
    }
}

impl FreezeObserver for FabricState {
    fn prepare(&self, _: Span) -> std::result::Result<(), String> {
        Ok(())
    }

    /// Ends the registration last: the peers' keys depend on it, and are the same as long as the
    /// fabric exists.
    fn commit(&self, span: Span) -> std::result::Result<(), String> {
        if !self.span.overlaps(span) {
            return Ok(());
        }
        let registration = lock(&self.registration).take();
        registration.map_or(Ok(()), |registration| registration.deregister().map_err(|e| e.to_string()))
    }
}
