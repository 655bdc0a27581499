//! The communication endpoint of a process.

use crate::connect::connections::Connections;
use crate::connect::device_resources::{DeviceResources, MAX_REQUESTS};
use crate::connect::endpoint_info::EndpointInfo;
use crate::options::FabricOptions;
use crate::peer::PeerId;
use crate::verbs::completion_queue::CompletionQueue;
use crate::verbs::in_flight::{InFlight, InFlightLimits};
use hostbuf::error::Result;
use hostbuf_os::fork_guard::ForkGuard;

/// An endpoint of a process: its device, its connections, and the requests in progress on them.
pub(crate) struct Endpoint {
    fork_guard: ForkGuard,
    pub(crate) in_flight: InFlight,
    pub(crate) connections: Connections,
    pub(crate) options: FabricOptions,
}

impl Endpoint {
    /// Makes an endpoint for the process with index `own` in `peers`.
    pub(crate) fn new(
        resources: DeviceResources,
        own: PeerId,
        peers: &[EndpointInfo],
        options: FabricOptions,
    ) -> Endpoint {
        let sends = resources.sends.clone();
        let limits = InFlightLimits { total: MAX_REQUESTS, depth: options.depth };
        let in_flight = InFlight::new(sends, limits, peers.len(), options.busy_poll);
        let addresses = peers.iter().map(|peer| peer.address).collect();
        let connections = Connections::new(resources, peers[0].group, own, addresses, options.clone());
        Endpoint { fork_guard: ForkGuard::current(), in_flight, connections, options }
    }

    /// Checks that this process made the endpoint.
    ///
    /// # Errors
    /// [`Error::Forked`](hostbuf_register::Error::Forked) in a forked child, since completions arrive in the parent.
    pub(crate) fn check_owner(&self) -> Result<()> {
        if self.is_owned() { Ok(()) } else { Err(hostbuf_register::Error::Forked.into()) }
    }

    /// Returns whether this process made the endpoint, rather than its parent.
    pub(crate) fn is_owned(&self) -> bool {
        self.fork_guard.is_current()
    }

    /// Processes all notifications and connect messages that have arrived, and requests events for
    /// the next ones.
    ///
    /// # Errors
    /// [`Error::Os`].
    pub(crate) fn receive(&self, on_notification: &dyn Fn(u32)) -> Result<()> {
        self.connections.incoming().into_iter().try_for_each(CompletionQueue::request_event)?;
        // Notifications first: a connect message may replace a connection, and with it the
        // notifications that arrived on it.
        self.connections.receive_notifications(on_notification)?;
        self.connections.receive_messages()
    }
}
