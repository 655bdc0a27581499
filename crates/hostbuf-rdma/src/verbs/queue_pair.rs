//! Queue pairs: one end of a connection, or of datagrams.

#![allow(unsafe_code)]

use std::io;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

use ibverbs_sys as ffi;

use crate::error::{Error, Result};
use crate::os::lineage::Lineage;
use crate::rdma::options::Options;
use crate::rdma::verbs::completion_queue::Completions;
use crate::rdma::verbs::in_flight::GROUP;
use crate::rdma::verbs::port::Port;
use crate::rdma::verbs::shared_receive_queue::Receives;
use crate::register::Verbs;

/// What a device does in one step, and where it reports that: a *work request*.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    /// Comes back with the completion.
    pub(crate) id: u64,
    pub(crate) what: What,
    /// This side's memory: address, bytes, key.
    pub(crate) local: (usize, u32, u32),
    /// Whether it reports success too.
    pub(crate) told: bool,
}

/// What is done to the other side.
#[derive(Clone, Copy, Debug)]
pub(crate) enum What {
    /// Writes to an address there by a key.
    Write { address: u64, key: u32 },
    /// The same, and tells a number to the process there.
    WriteAndTell { address: u64, key: u32, number: u32 },
    /// Reads from there.
    Read { address: u64, key: u32 },
    /// Adds to a word there, and reads what it was.
    FetchAdd { address: u64, key: u32, add: u64 },
}

/// One end of a reliable connection, or of datagrams.
pub(crate) struct Pair {
    pair: NonNull<ffi::ibv_qp>,
    lineage: Lineage,
    // Behind the pair, in the order in which they may end.
    _sends: Arc<Completions>,
    _receives: Arc<Receives>,
    verbs: Arc<Verbs>,
}

// SAFETY: verbs may be called by any thread, and by several at a time.
unsafe impl Send for Pair {}
// SAFETY: as above.
unsafe impl Sync for Pair {}

/// What both ends of a connection have to know of each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct End {
    pub(crate) address: [u8; 16],
    pub(crate) pair: u32,
    pub(crate) sequence: u32,
    /// As verbs count it.
    pub(crate) mtu: u32,
}

fn last(doing: &'static str) -> Error {
    Error::os(doing)(io::Error::last_os_error())
}

impl Pair {
    /// A pair for a reliable connection: at most `depth` requests at a time.
    ///
    /// # Errors
    /// [`Error::Os`].
    pub(crate) fn reliable(
        verbs: &Arc<Verbs>,
        sends: &Arc<Completions>,
        receives: &Arc<Receives>,
        depth: u32,
    ) -> Result<Pair> {
        Pair::new(verbs, sends, receives, ffi::ibv_qp_type::IBV_QPT_RC, depth, 0)
    }

    /// A pair for datagrams, ready to be used; of at most `bytes` that are copied when they are posted.
    ///
    /// # Errors
    /// [`Error::Os`].
    pub(crate) fn datagrams(
        verbs: &Arc<Verbs>,
        sends: &Arc<Completions>,
        receives: &Arc<Receives>,
        port: &Port,
        key: u32,
        bytes: u32,
    ) -> Result<Pair> {
        use ffi::ibv_qp_attr_mask as Mask;
        use ffi::ibv_qp_state as State;
        let pair = Pair::new(verbs, sends, receives, ffi::ibv_qp_type::IBV_QPT_UD, 64, bytes)?;
        let mut attributes = ffi::ibv_qp_attr {
            qp_state: State::IBV_QPS_INIT,
            port_num: port.number,
            qkey: key,
            ..Default::default()
        };
        let named = Mask::IBV_QP_STATE | Mask::IBV_QP_PKEY_INDEX | Mask::IBV_QP_PORT | Mask::IBV_QP_QKEY;
        pair.modify(&mut attributes, named)?;
        attributes.qp_state = State::IBV_QPS_RTR;
        pair.modify(&mut attributes, Mask::IBV_QP_STATE)?;
        attributes.qp_state = State::IBV_QPS_RTS;
        pair.modify(&mut attributes, Mask::IBV_QP_STATE | Mask::IBV_QP_SQ_PSN)?;
        Ok(pair)
    }

    fn new(
        verbs: &Arc<Verbs>,
        sends: &Arc<Completions>,
        receives: &Arc<Receives>,
        kind: ffi::ibv_qp_type::Type,
        depth: u32,
        copied: u32,
    ) -> Result<Pair> {
        let mut wanted = ffi::ibv_qp_init_attr {
            send_cq: sends.as_ptr(),
            recv_cq: receives.completions().as_ptr(),
            srq: receives.as_ptr(),
            qp_type: kind,
            ..Default::default()
        };
        (wanted.cap.max_send_wr, wanted.cap.max_send_sge, wanted.cap.max_inline_data) = (depth, 1, copied);
        // SAFETY: all of it lives as long as the pair, which holds it.
        let pair = unsafe { ffi::ibv_create_qp(verbs.protection_domain().as_ptr(), &raw mut wanted) };
        Ok(Pair {
            pair: NonNull::new(pair).ok_or_else(|| last("making a queue pair"))?,
            lineage: Lineage::here(),
            _sends: sends.clone(),
            _receives: receives.clone(),
            verbs: verbs.clone(),
        })
    }

    /// Its number on its device.
    pub(crate) fn number(&self) -> u32 {
        // SAFETY: the verbs have filled it, and change it no more.
        unsafe { self.pair.as_ref().qp_num }
    }

    /// Joins it to the other end of a connection, which joins itself to this.
    ///
    /// # Errors
    /// [`Error::Os`].
    pub(crate) fn join(&self, port: &Port, own: End, other: End, options: &Options) -> Result<()> {
        use ffi::ibv_access_flags as Right;
        use ffi::ibv_qp_attr_mask as Mask;
        use ffi::ibv_qp_state as State;
        let rights =
            Right::IBV_ACCESS_REMOTE_WRITE | Right::IBV_ACCESS_REMOTE_READ | Right::IBV_ACCESS_REMOTE_ATOMIC;
        let mut first = ffi::ibv_qp_attr {
            qp_state: State::IBV_QPS_INIT,
            port_num: port.number,
            qp_access_flags: rights.0,
            ..Default::default()
        };
        let named =
            Mask::IBV_QP_STATE | Mask::IBV_QP_PKEY_INDEX | Mask::IBV_QP_PORT | Mask::IBV_QP_ACCESS_FLAGS;
        self.modify(&mut first, named)?;

        let mut receiving = ffi::ibv_qp_attr {
            qp_state: State::IBV_QPS_RTR,
            path_mtu: own.mtu.min(other.mtu),
            dest_qp_num: other.pair,
            rq_psn: other.sequence,
            max_dest_rd_atomic: READS,
            min_rnr_timer: RNR_TIMER,
            ..Default::default()
        };
        receiving.ah_attr = route(port, other.address);
        let named = Mask::IBV_QP_STATE
            | Mask::IBV_QP_AV
            | Mask::IBV_QP_PATH_MTU
            | Mask::IBV_QP_DEST_QPN
            | Mask::IBV_QP_RQ_PSN
            | Mask::IBV_QP_MAX_DEST_RD_ATOMIC
            | Mask::IBV_QP_MIN_RNR_TIMER;
        self.modify(&mut receiving, named)?;

        let mut sending = ffi::ibv_qp_attr {
            qp_state: State::IBV_QPS_RTS,
            sq_psn: own.sequence,
            timeout: options.answer_exponent(),
            retry_cnt: options.retries,
            // As long as it takes the other side to give a receive.
            rnr_retry: 7,
            max_rd_atomic: READS,
            ..Default::default()
        };
        let named = Mask::IBV_QP_STATE
            | Mask::IBV_QP_TIMEOUT
            | Mask::IBV_QP_RETRY_CNT
            | Mask::IBV_QP_RNR_RETRY
            | Mask::IBV_QP_SQ_PSN
            | Mask::IBV_QP_MAX_QP_RD_ATOMIC;
        self.modify(&mut sending, named)
    }

    fn modify(&self, attributes: &mut ffi::ibv_qp_attr, named: ffi::ibv_qp_attr_mask) -> Result<()> {
        // SAFETY: a pair that lives; the attributes named are set.
        match unsafe { ffi::ibv_modify_qp(self.pair.as_ptr(), attributes, named.0 as i32) } {
            0 => Ok(()),
            code => Err(Error::os("changing a queue pair's state")(io::Error::from_raw_os_error(code))),
        }
    }

    /// Posts requests together, in their order. There must be room for them.
    ///
    /// # Errors
    /// [`Error::Os`]; how many were posted is the number.
    ///
    /// # Safety
    /// The local memory stays registered, mapped and, for reads, untouched until the completion.
    pub(crate) unsafe fn post(
        &self,
        requests: impl ExactSizeIterator<Item = Request>,
    ) -> std::result::Result<(), (usize, Error)> {
        match requests.len() {
            0 => Ok(()),
            // SAFETY: as this function's caller promises.
            1 => unsafe { self.post_at_most::<1>(requests) },
            // SAFETY: as above.
            _ => unsafe { self.post_at_most::<GROUP>(requests) },
        }
    }

    unsafe fn post_at_most<const N: usize>(
        &self,
        requests: impl ExactSizeIterator<Item = Request>,
    ) -> std::result::Result<(), (usize, Error)> {
        let count = requests.len();
        assert!((1..=N).contains(&count), "{count} requests at once");
        let mut parts = [ffi::ibv_sge::default(); N];
        let mut wanted = [ffi::ibv_send_wr::default(); N];
        for (at, request) in requests.enumerate() {
            let (address, length, key) = request.local;
            parts[at] = ffi::ibv_sge { addr: address as u64, length, lkey: key };
            wanted[at].wr_id = request.id;
            wanted[at].num_sge = i32::from(length > 0);
            fill(&mut wanted[at], &request);
        }
        let (first_part, first) = (parts.as_mut_ptr(), wanted.as_mut_ptr());
        for at in 0..count {
            // SAFETY: inside both arrays.
            unsafe {
                (*first.add(at)).sg_list = first_part.add(at);
                (*first.add(at)).next = if at + 1 < count { first.add(at + 1) } else { null_mut() };
            }
        }
        let mut bad: *mut ffi::ibv_send_wr = null_mut();
        // SAFETY: a pair that lives; the requests are read before the call returns.
        let code = unsafe {
            let post = (*self.pair.as_ref().context).ops.post_send.expect("every device has it");
            post(self.pair.as_ptr(), first, &raw mut bad)
        };
        if code == 0 {
            return Ok(());
        }
        let posted = (bad as usize).saturating_sub(first as usize) / size_of::<ffi::ibv_send_wr>();
        let doing = format!("posting a request to {}", crate::register::Registrar::name(&*self.verbs));
        Err((posted.min(count), Error::os(doing)(io::Error::from_raw_os_error(code))))
    }

    /// Lets the connection fail, and a last request with it: what was posted before is over when that is reported.
    pub(crate) fn end_with(&self, id: u64) {
        let mut attributes =
            ffi::ibv_qp_attr { qp_state: ffi::ibv_qp_state::IBV_QPS_ERR, ..Default::default() };
        let failed = self.modify(&mut attributes, ffi::ibv_qp_attr_mask::IBV_QP_STATE).map_err(|e| (0, e));
        let last = Request { id, what: What::Write { address: 0, key: 0 }, local: (0, 0, 0), told: true };
        // SAFETY: it names no memory.
        let posted = failed.and_then(|()| unsafe { self.post_at_most::<1>(std::iter::once(last)) });
        if let Err((_, error)) = posted {
            tracing::error!(%error, "a connection could not be ended: its places in the queue are lost");
        }
    }

    pub(crate) fn as_ptr(&self) -> *mut ffi::ibv_qp {
        self.pair.as_ptr()
    }
}

/// How many reads and atomics of one connection are under way at a time.
const READS: u8 = 4;
/// How long the device waits before it asks again for a receive: 12 means 0.64 ms.
const RNR_TIMER: u8 = 12;

/// The way to an address.
pub(crate) fn route(port: &Port, address: [u8; 16]) -> ffi::ibv_ah_attr {
    let mut route = ffi::ibv_ah_attr { is_global: 1, port_num: port.number, ..Default::default() };
    route.grh.dgid = ffi::ibv_gid { raw: address };
    route.grh.sgid_index = port.index;
    route.grh.hop_limit = 64;
    route
}

fn fill(wanted: &mut ffi::ibv_send_wr, request: &Request) {
    use ffi::ibv_wr_opcode as Operation;
    let mut flags = if request.told { ffi::ibv_send_flags::IBV_SEND_SIGNALED.0 } else { 0 };
    match request.what {
        What::Write { address, key }
        | What::WriteAndTell { address, key, .. }
        | What::Read { address, key } => {
            wanted.wr.rdma.remote_addr = address;
            wanted.wr.rdma.rkey = key;
        }
        What::FetchAdd { address, key, add } => {
            wanted.wr.atomic.remote_addr = address;
            wanted.wr.atomic.rkey = key;
            wanted.wr.atomic.compare_add = add;
        }
    }
    wanted.opcode = match request.what {
        What::Write { .. } => Operation::IBV_WR_RDMA_WRITE,
        What::WriteAndTell { .. } => Operation::IBV_WR_RDMA_WRITE_WITH_IMM,
        What::Read { .. } => Operation::IBV_WR_RDMA_READ,
        What::FetchAdd { .. } => Operation::IBV_WR_ATOMIC_FETCH_AND_ADD,
    };
    if let What::WriteAndTell { number, .. } = request.what {
        wanted.__bindgen_anon_1.imm_data = number.to_be();
        // The other side sleeps until an event comes.
        flags |= ffi::ibv_send_flags::IBV_SEND_SOLICITED.0;
    }
    wanted.send_flags = flags;
}

impl Drop for Pair {
    fn drop(&mut self) {
        if !self.lineage.is_here() {
            // The parent's.
            return;
        }
        // SAFETY: made by new, ended nowhere else.
        let code = unsafe { ffi::ibv_destroy_qp(self.pair.as_ptr()) };
        if code != 0 {
            tracing::error!(code, "a queue pair could not be ended");
        }
    }
}
