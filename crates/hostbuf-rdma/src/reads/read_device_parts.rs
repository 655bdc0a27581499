//! The objects that all connections of a device for reads share.

use std::sync::Arc;

use hostbuf_register::Verbs;

use crate::options::FabricOptions;
use crate::verbs::port::Port;
use crate::verbs::shared_receive_queue::SharedReceiveQueue;

/// The objects that all connections of a device for reads share.
pub(crate) struct ReadDeviceParts {
    pub(crate) receive_queue: Arc<SharedReceiveQueue>,
    pub(crate) port: Port,
    pub(crate) verbs: Arc<Verbs>,
    pub(crate) options: FabricOptions,
}
