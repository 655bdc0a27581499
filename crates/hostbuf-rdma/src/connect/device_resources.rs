//! The device of an endpoint, and the objects that all its connections share.

use std::sync::Arc;

use crate::connect::connect_message::ConnectMessage;
use crate::connect::device_selection;
use crate::options::FabricOptions;
use crate::verbs::completion_queue::CompletionQueue;
use crate::verbs::datagram::DatagramQueuePair;
use crate::verbs::port::Port;
use crate::verbs::shared_receive_queue::SharedReceiveQueue;
use hostbuf::error::Result;
use hostbuf_os::cores;
use hostbuf_register::{Registrar, Verbs};

/// The maximum number of requests in progress, to all peers together.
pub(crate) const MAX_REQUESTS: u32 = 4096;
/// The number of receive slots for notifications of peers. Peers wait while none is free.
const RECEIVE_SLOTS: u32 = 1024;
/// The size of a receive slot. Notifications are immediate data, which needs no bytes.
const RECEIVE_BYTES: usize = 64;

/// An open device, with the objects that all connections of an endpoint share.
pub(crate) struct DeviceResources {
    pub(crate) datagrams: DatagramQueuePair,
    pub(crate) sends: Arc<CompletionQueue>,
    pub(crate) receive_queue: Arc<SharedReceiveQueue>,
    pub(crate) port: Port,
    pub(crate) verbs: Arc<Verbs>,
}

impl DeviceResources {
    /// Opens the device.
    ///
    /// # Errors
    /// [`Error::Invalid`](hostbuf::Error::Invalid) for an option out of its range,
    /// [`Error::Unsupported`](hostbuf::Error::Unsupported), [`Error::Os`](hostbuf::Error::Os).
    pub(crate) fn open(options: &FabricOptions) -> Result<DeviceResources> {
        options.check()?;
        // If no port is known to be up, opening the first device gives the reason.
        let nearest = || device_selection::nearest(&Verbs::devices().unwrap_or_default(), cores::node());
        let device = options.device.clone().or_else(nearest);
        let verbs = Arc::new(Verbs::open(device.as_deref())?);
        let port = Port::choose(&verbs, options.gid_index)?.with_mtu(options.mtu)?;
        let datagrams = DatagramQueuePair::new(&verbs, port, ConnectMessage::SIZE)?;
        let sends = Arc::new(CompletionQueue::new(&verbs, MAX_REQUESTS)?);
        let receive_queue = Arc::new(SharedReceiveQueue::new(&verbs, RECEIVE_SLOTS, RECEIVE_BYTES)?);
        tracing::info!(device = verbs.name(), address = %port.gid, "RDMA");
        Ok(DeviceResources { datagrams, sends, receive_queue, port, verbs })
    }
}
