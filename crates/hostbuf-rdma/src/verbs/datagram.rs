//! Unreliable datagrams: delivery is not guaranteed.

#![allow(unsafe_code, reason = "posts requests with addresses, and reads memory that a device writes")]

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io;
use std::ptr::null_mut;
use std::sync::{Arc, Mutex};

use ibverbs_sys as ffi;

use crate::sync::lock;
use crate::verbs::address_handle::AddressHandle;
use crate::verbs::completion_queue::CompletionQueue;
use crate::verbs::gid::Gid;
use crate::verbs::port::Port;
use crate::verbs::queue_pair::{QueueKey, QueuePair};
use crate::verbs::shared_receive_queue::{ReceiveSlot, SharedReceiveQueue};
use hostbuf::error::{Error, Result};
use hostbuf_register::Verbs;

/// The number of receive slots. Datagrams that arrive while all are in use are lost.
const RECEIVE_SLOTS: u32 = 256;
/// The number of bytes in front of each received datagram: its global routing header.
const ROUTING_HEADER: usize = 40;
/// The queue key (Q_Key), which both sides of a datagram have in common.
const QUEUE_KEY: QueueKey = QueueKey(0x6862_7566);

/// The address of a process's datagram queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DatagramAddress {
    pub(crate) gid: Gid,
    pub(crate) queue_pair: u32,
}

/// A queue pair for unreliable datagrams (UD) of a fixed size.
pub(crate) struct DatagramQueuePair {
    // In the order in which they are dropped.
    handles: Mutex<HashMap<Gid, AddressHandle>>,
    queue_pair: QueuePair,
    received: Arc<SharedReceiveQueue>,
    sent: Arc<CompletionQueue>,
    port: Port,
    size: usize,
    verbs: Arc<Verbs>,
}

impl DatagramQueuePair {
    /// Creates a queue pair for datagrams of `size` bytes.
    ///
    /// # Errors
    /// [`Error::Os`], and the errors of registering memory.
    pub(crate) fn new(verbs: &Arc<Verbs>, port: Port, size: usize) -> Result<DatagramQueuePair> {
        let received = Arc::new(SharedReceiveQueue::new(verbs, RECEIVE_SLOTS, ROUTING_HEADER + size)?);
        let sent = Arc::new(CompletionQueue::new(verbs, 128)?);
        let queue_pair = QueuePair::new_datagram(verbs, &sent, &received, &port, QUEUE_KEY, size as u32)?;
        let handles = Mutex::new(HashMap::new());
        Ok(DatagramQueuePair { handles, queue_pair, received, sent, port, size, verbs: verbs.clone() })
    }

    pub(crate) fn address(&self) -> DatagramAddress {
        DatagramAddress { gid: self.port.gid, queue_pair: self.queue_pair.number() }
    }

    /// Returns the completion queue of received datagrams.
    pub(crate) fn incoming(&self) -> &CompletionQueue {
        self.received.completions()
    }

    /// Sends `datagram`, which is copied. If the send queue is full, the datagram is lost.
    ///
    /// # Panics
    /// If `datagram` does not have the size of this queue pair's datagrams.
    ///
    /// # Errors
    /// [`Error::Os`].
    pub(crate) fn send(&self, to: DatagramAddress, datagram: &[u8]) -> Result<()> {
        assert_eq!(datagram.len(), self.size, "the size of a datagram");
        let mut handles = lock(&self.handles);
        // Completed sends make room in the queue.
        self.sent.poll(|_| {})?;
        let handle = match handles.entry(to.gid) {
            Entry::Occupied(handle) => handle.into_mut(),
            Entry::Vacant(vacant) => vacant.insert(AddressHandle::new(&self.verbs, &self.port, to.gid)?),
        };
        let mut segment =
            ffi::ibv_sge { addr: datagram.as_ptr() as u64, length: datagram.len() as u32, lkey: 0 };
        let mut request = ffi::ibv_send_wr {
            sg_list: &raw mut segment,
            num_sge: 1,
            opcode: ffi::ibv_wr_opcode::IBV_WR_SEND,
            // The call copies inline data.
            send_flags: ffi::ibv_send_flags::IBV_SEND_SIGNALED.0 | ffi::ibv_send_flags::IBV_SEND_INLINE.0,
            ..Default::default()
        };
        request.wr.ud.ah = handle.as_ptr();
        request.wr.ud.remote_qpn = to.queue_pair;
        request.wr.ud.remote_qkey = QUEUE_KEY.0;
        // SAFETY: the segment and the address handle exist until the call returns. The call copies
        // the bytes, and the handle stays in the map until this queue pair is dropped.
        match unsafe { self.queue_pair.post_raw(&raw mut request, &mut null_mut()) } {
            // A full queue counts as a loss on the network.
            0 | libc::ENOMEM => Ok(()),
            code => Err(Error::os("sending a datagram")(io::Error::from_raw_os_error(code))),
        }
    }

    /// Passes each received datagram to `each`.
    ///
    /// # Errors
    /// [`Error::Os`].
    pub(crate) fn receive(&self, mut each: impl FnMut(&[u8])) -> Result<()> {
        let mut result = Ok(());
        self.received.completions().poll(|completion| {
            let slot = ReceiveSlot(completion.wr_id());
            if completion.is_valid() && completion.len() >= ROUTING_HEADER {
                // SAFETY: the completion was just polled, and the slot is posted again only below.
                let bytes = unsafe { self.received.bytes(slot, completion.len()) };
                each(&bytes[ROUTING_HEADER..]);
            }
            if let Err(error) = self.received.post(slot) {
                result = Err(error);
            }
        })?;
        result
    }
}
