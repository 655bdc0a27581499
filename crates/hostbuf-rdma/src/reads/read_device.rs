//! A device whose connections read the memory of other processes.

use std::fmt;
use std::sync::Arc;

use hostbuf::error::Result;
use hostbuf_os::cores;
use hostbuf_register::{Registrar, Verbs};

use crate::connect::device_selection;
use crate::options::FabricOptions;
use crate::reads::read_connection::ReadConnection;
use crate::reads::read_device_parts::ReadDeviceParts;
use crate::verbs::port::Port;
use crate::verbs::shared_receive_queue::SharedReceiveQueue;

/// The number of receive slots, which reads do not use: a queue has at least one.
const RECEIVE_SLOTS: u32 = 1;
const RECEIVE_BYTES: usize = 64;

/// An open RDMA device, whose connections read the memory of other processes. Clones share the
/// device; two are equal if they do.
#[derive(Clone)]
pub struct ReadDevice(Arc<ReadDeviceParts>);

impl ReadDevice {
    /// Opens the device that the options name, or the nearest one.
    ///
    /// # Errors
    /// [`Error::Invalid`](hostbuf::Error::Invalid) for an option out of its range,
    /// [`Error::Unsupported`](hostbuf::Error::Unsupported) if this host has no device with an
    /// active port, [`Error::Os`](hostbuf::Error::Os).
    pub fn open(options: FabricOptions) -> Result<ReadDevice> {
        options.check()?;
        let nearest = || device_selection::nearest(&Verbs::devices().unwrap_or_default(), cores::node());
        let device = options.device.clone().or_else(nearest);
        let verbs = Arc::new(Verbs::open(device.as_deref())?);
        let port = Port::choose(&verbs, options.gid_index)?.with_mtu(options.mtu)?;
        let receive_queue = Arc::new(SharedReceiveQueue::new(&verbs, RECEIVE_SLOTS, RECEIVE_BYTES)?);
        tracing::info!(device = verbs.name(), address = %port.gid, "RDMA reads");
        Ok(ReadDevice(Arc::new(ReadDeviceParts { receive_queue, port, verbs, options })))
    }

    /// Returns the name of the device, for example `mlx5_0`.
    #[must_use]
    pub fn name(&self) -> String {
        self.0.verbs.name()
    }

    /// Returns the registrar of the memory that connections of the device read or write.
    #[must_use]
    pub fn registrar(&self) -> &Arc<Verbs> {
        &self.0.verbs
    }

    /// Makes one end of a connection, which is not connected yet.
    ///
    /// # Errors
    /// [`Error::Os`](hostbuf::Error::Os).
    pub fn prepare(&self) -> Result<ReadConnection> {
        ReadConnection::new(&self.0)
    }
}

impl PartialEq for ReadDevice {
    fn eq(&self, other: &ReadDevice) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for ReadDevice {}

impl fmt::Debug for ReadDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadDevice").field("name", &self.name()).finish_non_exhaustive()
    }
}
