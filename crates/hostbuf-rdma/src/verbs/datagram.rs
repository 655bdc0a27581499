//! Sending and getting letters: one datagram queue pair for each process that does I/O.

#![allow(unsafe_code)]

use std::collections::HashMap;
use std::io;
use std::ptr::{NonNull, null_mut};
use std::sync::{Arc, Mutex, PoisonError};

use ibverbs_sys as ffi;

use crate::error::{Error, Result};
use crate::os::lineage::Lineage;
use crate::rdma::connect::connect_message::Letter;
use crate::rdma::verbs::completion_queue::Completions;
use crate::rdma::verbs::port::Port;
use crate::rdma::verbs::queue_pair::{Pair, route};
use crate::rdma::verbs::shared_receive_queue::Receives;
use crate::register::Verbs;

/// How many letters may lie unread: more are lost, and asked for again.
const UNREAD: u32 = 256;
/// In front of each letter that comes stands the way it came.
const HEADER: usize = 40;
/// A number that both sides of a datagram have to know.
const KEY: u32 = 0x6862_7566;

/// See the [module](self).
pub(crate) struct Mail {
    // In the order in which they end.
    ways: Mutex<HashMap<[u8; 16], Way>>,
    pair: Pair,
    letters: Arc<Receives>,
    sent: Arc<Completions>,
    port: Port,
    verbs: Arc<Verbs>,
}

/// The way to an address: an *address handle*.
struct Way {
    handle: NonNull<ffi::ibv_ah>,
    lineage: Lineage,
}

// SAFETY: verbs may be called by any thread, and by several at a time.
unsafe impl Send for Way {}

impl Drop for Way {
    fn drop(&mut self) {
        if !self.lineage.is_here() {
            // The parent's.
            return;
        }
        // SAFETY: made by Mail::send, and used only below its lock.
        let code = unsafe { ffi::ibv_destroy_ah(self.handle.as_ptr()) };
        if code != 0 {
            tracing::error!(code, "an address handle could not be ended");
        }
    }
}

impl Mail {
    /// # Errors
    /// [`Error::Os`]; as registering.
    pub(crate) fn new(verbs: &Arc<Verbs>, port: Port) -> Result<Mail> {
        let letters = Arc::new(Receives::new(verbs, UNREAD, HEADER + Letter::SIZE)?);
        let sent = Arc::new(Completions::new(verbs, 128)?);
        let pair = Pair::datagrams(verbs, &sent, &letters, &port, KEY, Letter::SIZE as u32)?;
        Ok(Mail { ways: Mutex::new(HashMap::new()), pair, letters, sent, port, verbs: verbs.clone() })
    }

    /// Where others send to.
    pub(crate) fn number(&self) -> u32 {
        self.pair.number()
    }

    /// What becomes readable when a letter has come.
    pub(crate) fn incoming(&self) -> &Completions {
        self.letters.completions()
    }

    /// Sends a letter. That it arrives is not promised.
    ///
    /// # Errors
    /// [`Error::Os`].
    pub(crate) fn send(&self, address: [u8; 16], pair: u32, letter: &Letter) -> Result<()> {
        let mut ways = self.ways.lock().unwrap_or_else(PoisonError::into_inner);
        // Those that have gone make room.
        self.sent.take(|_| {})?;
        let way = match ways.entry(address) {
            std::collections::hash_map::Entry::Occupied(way) => way.into_mut(),
            std::collections::hash_map::Entry::Vacant(place) => place.insert(self.find_way(address)?),
        };
        let bytes = letter.write();
        let mut part = ffi::ibv_sge { addr: bytes.as_ptr() as u64, length: bytes.len() as u32, lkey: 0 };
        let mut wanted = ffi::ibv_send_wr {
            sg_list: &raw mut part,
            num_sge: 1,
            opcode: ffi::ibv_wr_opcode::IBV_WR_SEND,
            // The bytes are copied by the call.
            send_flags: ffi::ibv_send_flags::IBV_SEND_SIGNALED.0 | ffi::ibv_send_flags::IBV_SEND_INLINE.0,
            ..Default::default()
        };
        wanted.wr.ud.ah = way.handle.as_ptr();
        wanted.wr.ud.remote_qpn = pair;
        wanted.wr.ud.remote_qkey = KEY;
        let mut bad = null_mut();
        // SAFETY: a pair that lives; the request and its bytes are read before the call returns.
        let code = unsafe {
            let post = (*self.pair.as_ptr().as_ref().expect("a pair").context).ops.post_send;
            post.expect("every device has it")(self.pair.as_ptr(), &raw mut wanted, &raw mut bad)
        };
        match code {
            // No room: as if it were lost on the way.
            0 | libc::ENOMEM => Ok(()),
            code => Err(Error::os("sending a datagram")(io::Error::from_raw_os_error(code))),
        }
    }

    fn find_way(&self, address: [u8; 16]) -> Result<Way> {
        let mut wanted = route(&self.port, address);
        // SAFETY: the domain lives as long as the Verbs, which this holds.
        let handle = unsafe { ffi::ibv_create_ah(self.verbs.protection_domain().as_ptr(), &raw mut wanted) };
        let failed =
            || Error::os(format!("finding a way to {}", Port::show(address)))(io::Error::last_os_error());
        Ok(Way { handle: NonNull::new(handle).ok_or_else(failed)?, lineage: Lineage::here() })
    }

    /// Hands the letters that have come to `each`, and what are none to nobody.
    ///
    /// # Errors
    /// [`Error::Os`].
    pub(crate) fn read(&self, mut each: impl FnMut(Letter)) -> Result<()> {
        let mut result = Ok(());
        self.letters.completions().take(|completion| {
            let place = completion.wr_id();
            if completion.is_valid() && completion.len() >= HEADER {
                // SAFETY: its completion has just come, and it is given again below.
                let bytes = unsafe { self.letters.bytes(place, completion.len()) };
                if let Some(letter) = Letter::read(&bytes[HEADER..]) {
                    each(letter);
                }
            }
            if let Err(error) = self.letters.give(place) {
                result = Err(error);
            }
        })?;
        result
    }
}
