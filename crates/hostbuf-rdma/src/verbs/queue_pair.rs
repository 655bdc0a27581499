//! Queue pairs.

#![allow(unsafe_code, reason = "libibverbs is called by foreign functions")]

use std::io;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ibverbs_sys as ffi;

use crate::limits::MAX_BATCH;
use crate::options::FabricOptions;
use crate::verbs::address_handle::address_vector;
use crate::verbs::completion_queue::CompletionQueue;
use crate::verbs::gid::Gid;
use crate::verbs::port::Port;
use crate::verbs::shared_receive_queue::SharedReceiveQueue;
use crate::verbs::work_request::{LocalSegment, Operation, RemoteSegment, WorkRequest};
use hostbuf::error::{Error, Result};
use hostbuf_os::fork_guard::ForkGuard;
use hostbuf_register::{Registrar, Verbs};

/// The maximum number of reads and atomics of one connection that are in progress at a time.
const MAX_READS: u8 = 4;
/// The time that the device waits before it repeats a message for which the peer had no receive
/// slot: 12 encodes 0.64 ms.
const RNR_TIMER: u8 = 12;
/// The number of such repetitions: 7 encodes no limit.
const RNR_RETRIES: u8 = 7;
/// The length of the send queue for datagrams.
const DATAGRAM_DEPTH: u32 = 64;

/// A queue pair (`ibv_qp`): one end of a reliable connection, or of datagrams.
pub(crate) struct QueuePair {
    queue_pair: NonNull<ffi::ibv_qp>,
    fork_guard: ForkGuard,
    /// True once a request has failed: the device has moved the queue pair to the error state.
    has_failed: AtomicBool,
    // Dropped after the queue pair, in this order.
    _sends: Arc<CompletionQueue>,
    _receive_queue: Arc<SharedReceiveQueue>,
    verbs: Arc<Verbs>,
}

// SAFETY: any thread may call verbs, and several may at a time.
unsafe impl Send for QueuePair {}
// SAFETY: as above.
unsafe impl Sync for QueuePair {}

/// The attributes of a queue pair that the other end of a connection needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueuePairInfo {
    pub(crate) gid: Gid,
    pub(crate) number: u32,
    /// The sequence number of its first packet.
    pub(crate) first_packet: u32,
    /// The maximum transfer unit, in the encoding of verbs.
    pub(crate) mtu: u32,
}

/// The attributes of this process's end of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LocalInfo(pub(crate) QueuePairInfo);

/// The attributes of the other process's end of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RemoteInfo(pub(crate) QueuePairInfo);

/// The key by which a queue pair accepts datagrams (Q_Key).
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueueKey(pub(crate) u32);

/// The capacity of a queue pair.
struct Capacity {
    /// The length of the send queue.
    depth: u32,
    /// The maximum number of bytes of an inline send.
    max_inline: u32,
}

impl QueuePair {
    /// Creates a queue pair for a reliable connection with at most `depth` requests at a time.
    ///
    /// # Errors
    /// [`Error::Os`].
    pub(crate) fn new_reliable(
        verbs: &Arc<Verbs>,
        sends: &Arc<CompletionQueue>,
        receive_queue: &Arc<SharedReceiveQueue>,
        depth: u32,
    ) -> Result<QueuePair> {
        let capacity = Capacity { depth, max_inline: 0 };
        QueuePair::new(verbs, sends, receive_queue, ffi::ibv_qp_type::IBV_QPT_RC, capacity)
    }

    /// Creates a queue pair for datagrams, ready for use. Sends of up to `max_inline` bytes may be
    /// inline.
    ///
    /// # Errors
    /// [`Error::Os`].
    pub(crate) fn new_datagram(
        verbs: &Arc<Verbs>,
        sends: &Arc<CompletionQueue>,
        receive_queue: &Arc<SharedReceiveQueue>,
        port: &Port,
        queue_key: QueueKey,
        max_inline: u32,
    ) -> Result<QueuePair> {
        use ffi::ibv_qp_attr_mask as Mask;
        use ffi::ibv_qp_state as State;
        let kind = ffi::ibv_qp_type::IBV_QPT_UD;
        let capacity = Capacity { depth: DATAGRAM_DEPTH, max_inline };
        let queue_pair = QueuePair::new(verbs, sends, receive_queue, kind, capacity)?;
        let mut attributes = ffi::ibv_qp_attr {
            qp_state: State::IBV_QPS_INIT,
            port_num: port.number,
            qkey: queue_key.0,
            ..Default::default()
        };
        let mask = Mask::IBV_QP_STATE | Mask::IBV_QP_PKEY_INDEX | Mask::IBV_QP_PORT | Mask::IBV_QP_QKEY;
        queue_pair.modify(&mut attributes, mask)?;
        attributes.qp_state = State::IBV_QPS_RTR;
        queue_pair.modify(&mut attributes, Mask::IBV_QP_STATE)?;
        attributes.qp_state = State::IBV_QPS_RTS;
        queue_pair.modify(&mut attributes, Mask::IBV_QP_STATE | Mask::IBV_QP_SQ_PSN)?;
        Ok(queue_pair)
    }

    fn new(
        verbs: &Arc<Verbs>,
        sends: &Arc<CompletionQueue>,
        receive_queue: &Arc<SharedReceiveQueue>,
        kind: ffi::ibv_qp_type::Type,
        capacity: Capacity,
    ) -> Result<QueuePair> {
        let mut attributes = ffi::ibv_qp_init_attr {
            send_cq: sends.as_ptr(),
            recv_cq: receive_queue.completions().as_ptr(),
            srq: receive_queue.as_ptr(),
            qp_type: kind,
            ..Default::default()
        };
        attributes.cap.max_send_wr = capacity.depth;
        attributes.cap.max_send_sge = 1;
        attributes.cap.max_inline_data = capacity.max_inline;
        // SAFETY: the queue pair holds all objects that it is created with.
        let queue_pair =
            unsafe { ffi::ibv_create_qp(verbs.protection_domain().as_ptr().cast(), &raw mut attributes) };
        let queue_pair = NonNull::new(queue_pair)
            .ok_or_else(|| Error::os("creating a queue pair")(io::Error::last_os_error()))?;
        Ok(QueuePair {
            queue_pair,
            fork_guard: ForkGuard::current(),
            has_failed: AtomicBool::new(false),
            _sends: sends.clone(),
            _receive_queue: receive_queue.clone(),
            verbs: verbs.clone(),
        })
    }

    /// Returns the queue pair number on its device.
    pub(crate) fn number(&self) -> u32 {
        // SAFETY: the library has set the number, and never changes it.
        unsafe { self.queue_pair.as_ref().qp_num }
    }

    /// Connects it to the other end, whose owner does the same.
    ///
    /// # Errors
    /// [`Error::Os`].
    #[doc(alias = "ibv_modify_qp")]
    pub(crate) fn connect(
        &self,
        port: &Port,
        LocalInfo(own): LocalInfo,
        RemoteInfo(other): RemoteInfo,
        options: &FabricOptions,
    ) -> Result<()> {
        use ffi::ibv_access_flags as Access;
        use ffi::ibv_qp_attr_mask as Mask;
        use ffi::ibv_qp_state as State;
        let access = Access::IBV_ACCESS_REMOTE_WRITE
            | Access::IBV_ACCESS_REMOTE_READ
            | Access::IBV_ACCESS_REMOTE_ATOMIC;
        let mut initial = ffi::ibv_qp_attr {
            qp_state: State::IBV_QPS_INIT,
            port_num: port.number,
            qp_access_flags: access.0,
            ..Default::default()
        };
        let mask =
            Mask::IBV_QP_STATE | Mask::IBV_QP_PKEY_INDEX | Mask::IBV_QP_PORT | Mask::IBV_QP_ACCESS_FLAGS;
        self.modify(&mut initial, mask)?;

        let mut receiving = ffi::ibv_qp_attr {
            qp_state: State::IBV_QPS_RTR,
            path_mtu: own.mtu.min(other.mtu),
            dest_qp_num: other.number,
            rq_psn: other.first_packet,
            max_dest_rd_atomic: MAX_READS,
            min_rnr_timer: RNR_TIMER,
            ah_attr: address_vector(port, other.gid),
            ..Default::default()
        };
        let mask = Mask::IBV_QP_STATE
            | Mask::IBV_QP_AV
            | Mask::IBV_QP_PATH_MTU
            | Mask::IBV_QP_DEST_QPN
            | Mask::IBV_QP_RQ_PSN
            | Mask::IBV_QP_MAX_DEST_RD_ATOMIC
            | Mask::IBV_QP_MIN_RNR_TIMER;
        self.modify(&mut receiving, mask)?;

        let mut sending = ffi::ibv_qp_attr {
            qp_state: State::IBV_QPS_RTS,
            sq_psn: own.first_packet,
            timeout: options.ack_timeout_exponent(),
            retry_cnt: options.retries,
            rnr_retry: RNR_RETRIES,
            max_rd_atomic: MAX_READS,
            ..Default::default()
        };
        let mask = Mask::IBV_QP_STATE
            | Mask::IBV_QP_TIMEOUT
            | Mask::IBV_QP_RETRY_CNT
            | Mask::IBV_QP_RNR_RETRY
            | Mask::IBV_QP_SQ_PSN
            | Mask::IBV_QP_MAX_QP_RD_ATOMIC;
        self.modify(&mut sending, mask)
    }

    fn modify(&self, attributes: &mut ffi::ibv_qp_attr, mask: ffi::ibv_qp_attr_mask) -> Result<()> {
        // SAFETY: the queue pair exists; the attributes of the mask are set.
        match unsafe { ffi::ibv_modify_qp(self.queue_pair.as_ptr(), attributes, mask.0 as i32) } {
            0 => Ok(()),
            code => Err(Error::os("changing the state of a queue pair")(io::Error::from_raw_os_error(code))),
        }
    }

    /// Posts a batch of at most [`MAX_BATCH`] requests, in their order. The send queue must have
    /// room for all of them.
    ///
    /// # Errors
    /// The number of requests that were posted, and [`Error::Os`].
    ///
    /// # Safety
    /// The local memory stays registered and mapped until the completion, and for reads
    /// unreferenced.
    #[doc(alias = "ibv_post_send")]
    pub(crate) unsafe fn post(
        &self,
        requests: impl ExactSizeIterator<Item = WorkRequest>,
    ) -> std::result::Result<(), (usize, Error)> {
        match requests.len() {
            0 => Ok(()),
            // SAFETY: the caller keeps the contract.
            1 => unsafe { self.post_up_to::<1>(requests) },
            // SAFETY: as above.
            _ => unsafe { self.post_up_to::<MAX_BATCH>(requests) },
        }
    }

    unsafe fn post_up_to<const N: usize>(
        &self,
        requests: impl ExactSizeIterator<Item = WorkRequest>,
    ) -> std::result::Result<(), (usize, Error)> {
        let count = requests.len();
        assert!((1..=N).contains(&count), "a batch of {count} requests");
        let mut segments = [ffi::ibv_sge::default(); N];
        let mut list = [ffi::ibv_send_wr::default(); N];
        for (at, request) in requests.enumerate() {
            let LocalSegment { address, length, lkey } = request.local;
            segments[at] = ffi::ibv_sge { addr: address as u64, length, lkey: lkey.0 };
            list[at] = raw_request(&request);
        }
        let (first_segment, first) = (segments.as_mut_ptr(), list.as_mut_ptr());
        for at in 0..count {
            // SAFETY: inside both arrays.
            unsafe {
                (*first.add(at)).sg_list = first_segment.add(at);
                (*first.add(at)).next = if at + 1 < count { first.add(at + 1) } else { null_mut() };
            }
        }
        let mut bad: *mut ffi::ibv_send_wr = null_mut();
        // SAFETY: the list and its segments are local; the caller answers for the memory they name.
        let code = unsafe { self.post_raw(first, &mut bad) };
        if code == 0 {
            return Ok(());
        }
        let posted = (bad as usize).saturating_sub(first as usize) / size_of::<ffi::ibv_send_wr>();
        let doing = format!("posting a request to {}", self.verbs.name());
        Err((posted.min(count), Error::os(doing)(io::Error::from_raw_os_error(code))))
    }

    /// Posts a list of requests, and returns the error code of verbs. `bad` receives the first
    /// request that was not posted.
    ///
    /// # Safety
    /// `list` is a valid list, whose objects exist until the call returns. The memory that it names
    /// stays registered and mapped until the completions.
    pub(crate) unsafe fn post_raw(
        &self,
        list: *mut ffi::ibv_send_wr,
        bad: &mut *mut ffi::ibv_send_wr,
    ) -> i32 {
        // SAFETY: the queue pair exists; the library reads the list before the call returns.
        unsafe {
            let post = (*self.queue_pair.as_ref().context).ops.post_send.expect("every device has it");
            post(self.queue_pair.as_ptr(), list, bad)
        }
    }

    /// Notes that a request has failed.
    pub(crate) fn set_failed(&self) {
        self.has_failed.store(true, Ordering::Relaxed);
    }

    /// Returns whether a request has failed. The device then flushes all others.
    pub(crate) fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::Relaxed)
    }

    /// Makes the device flush the requests that it has left in the queue of a failed queue pair.
    /// SoftRoCE (seen with Linux 6.1) can leave requests there that are posted while it flushes.
    pub(crate) fn flush_again(&self) {
        let mut attributes =
            ffi::ibv_qp_attr { qp_state: ffi::ibv_qp_state::IBV_QPS_ERR, ..Default::default() };
        if let Err(error) = self.modify(&mut attributes, ffi::ibv_qp_attr_mask::IBV_QP_STATE) {
            tracing::error!(%error, "cannot end the requests of a failed connection");
        }
    }

    /// Moves the queue pair to the error state and posts a last request, `id`. All requests before
    /// it are over when the device reports that one, since the device completes requests in order.
    pub(crate) fn fail(&self, id: u64) {
        let mut attributes =
            ffi::ibv_qp_attr { qp_state: ffi::ibv_qp_state::IBV_QPS_ERR, ..Default::default() };
        let failed = self.modify(&mut attributes, ffi::ibv_qp_attr_mask::IBV_QP_STATE).map_err(|e| (0, e));
        let operation = Operation::Write(RemoteSegment::NONE);
        let last = WorkRequest { id, operation, local: LocalSegment::EMPTY, signaled: true };
        // SAFETY: the request names no memory.
        let posted = failed.and_then(|()| unsafe { self.post_up_to::<1>(std::iter::once(last)) });
        if let Err((_, error)) = posted {
            tracing::error!(%error, "cannot end a connection: its slots in the send queue are lost");
        }
    }
}

fn raw_request(request: &WorkRequest) -> ffi::ibv_send_wr {
    use ffi::ibv_wr_opcode as Opcode;
    let mut raw = ffi::ibv_send_wr {
        wr_id: request.id,
        num_sge: i32::from(request.local.length > 0),
        ..Default::default()
    };
    let RemoteSegment { address, rkey } = request.operation.remote();
    let mut flags = if request.signaled { ffi::ibv_send_flags::IBV_SEND_SIGNALED.0 } else { 0 };
    if let Operation::FetchAdd { add, .. } = request.operation {
        raw.wr.atomic.remote_addr = address;
        raw.wr.atomic.rkey = rkey.0;
        raw.wr.atomic.compare_add = add;
    } else {
        raw.wr.rdma.remote_addr = address;
        raw.wr.rdma.rkey = rkey.0;
    }
    raw.opcode = match request.operation {
        Operation::Write(_) => Opcode::IBV_WR_RDMA_WRITE,
        Operation::WriteWithImmediate { .. } => Opcode::IBV_WR_RDMA_WRITE_WITH_IMM,
        Operation::Read(_) => Opcode::IBV_WR_RDMA_READ,
        Operation::FetchAdd { .. } => Opcode::IBV_WR_ATOMIC_FETCH_AND_ADD,
    };
    if let Operation::WriteWithImmediate { immediate, .. } = request.operation {
        raw.__bindgen_anon_1.imm_data = immediate.to_be();
        // The receiver sleeps until an event arrives.
        flags |= ffi::ibv_send_flags::IBV_SEND_SOLICITED.0;
    }
    raw.send_flags = flags;
    raw
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        if !self.fork_guard.is_current() {
            // It belongs to the parent process.
            return;
        }
        // SAFETY: created by `new`, and destroyed only here.
        let code = unsafe { ffi::ibv_destroy_qp(self.queue_pair.as_ptr()) };
        if code != 0 {
            tracing::error!(code, "cannot destroy a queue pair");
        }
    }
}
