//! A connection by which a process reads the memory of another one.

#![allow(unsafe_code, reason = "a device writes memory that the caller has borrowed to it")]

use std::fmt;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hostbuf::error::{Error, Failure, Result};
use hostbuf_os::process;
use hostbuf_register::VerbsKey;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::reads::read_address::ReadAddress;
use crate::reads::read_device_parts::ReadDeviceParts;
use crate::reads::read_error::ReadError;
use crate::verbs::completion_queue::CompletionQueue;
use crate::verbs::queue_pair::{LocalInfo, QueuePair, QueuePairInfo, RemoteInfo};
use crate::verbs::work_request::{LocalKey, LocalSegment, Operation, RemoteKey, RemoteSegment, WorkRequest};

/// The number of requests that are posted at a time, which keeps the device busy.
const DEPTH: u32 = 8;
/// The number of bytes of a request: below the limits of all devices.
const REQUEST_BYTES: usize = 1 << 20;
/// The time after which a waiting thread looks whether its caller has given the read up.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// One end of a connection by which each process can read memory that the other one has registered
/// for [`Access::REMOTE_READ`](hostbuf_register::Access::REMOTE_READ). When it is dropped, the
/// other process can read nothing any more by it.
pub struct ReadConnection {
    queue_pair: QueuePair,
    sends: Arc<CompletionQueue>,
    own: QueuePairInfo,
    device: Arc<ReadDeviceParts>,
}

impl ReadConnection {
    pub(crate) fn new(device: &Arc<ReadDeviceParts>) -> Result<ReadConnection> {
        let ReadDeviceParts { receive_queue, port, verbs, .. } = &**device;
        let sends = Arc::new(CompletionQueue::new(verbs, DEPTH)?);
        let queue_pair = QueuePair::new_reliable(verbs, &sends, receive_queue, DEPTH)?;
        // Packets of an earlier connection must not match.
        let random = process::random().map_err(Error::os("drawing a random number"))?;
        let first_packet = (random & 0xff_ffff) as u32;
        let own = QueuePairInfo { gid: port.gid, number: queue_pair.number(), first_packet, mtu: port.mtu };
        Ok(ReadConnection { queue_pair, sends, own, device: device.clone() })
    }

    /// Returns the address, which the other end needs.
    #[must_use]
    pub fn address(&self) -> ReadAddress {
        ReadAddress(self.own)
    }

    /// Connects it to the other end, whose owner does the same before one of them reads.
    ///
    /// # Errors
    /// [`Error::Os`](hostbuf::Error::Os), for example for an address that this host cannot reach.
    pub fn connect(&self, ReadAddress(other): ReadAddress) -> Result<()> {
        let ReadDeviceParts { port, options, .. } = &*self.device;
        self.queue_pair.connect(port, LocalInfo(self.own), RemoteInfo(other), options)
    }

    /// Reads the bytes at `address` of the other process into `bytes`, until `until`, or until
    /// `is_over`. `local` is the key of `bytes`, registered for
    /// [`Access::WRITE`](hostbuf_register::Access::WRITE) with the device's registrar, and
    /// `remote_key` that of the other process (rkey).
    ///
    /// # Errors
    /// [`ReadError`]. The connection is gone then, and the device writes nothing to `bytes` any
    /// more.
    pub fn read(
        self,
        bytes: &mut [u8],
        local: VerbsKey,
        (address, remote_key): (u64, u32),
        until: Instant,
        is_over: &dyn Fn() -> bool,
    ) -> std::result::Result<ReadConnection, ReadError> {
        let length = bytes.len();
        let start = bytes.as_mut_ptr() as usize;
        let count = length.div_ceil(REQUEST_BYTES);
        let (mut posted, mut completed) = (0, 0);
        let mut failure = None;
        while completed < count {
            while posted < count && posted - completed < DEPTH as usize {
                let offset = posted * REQUEST_BYTES;
                let part = REQUEST_BYTES.min(length - offset) as u32;
                let remote = RemoteSegment { address, rkey: RemoteKey(remote_key) }.offset(offset);
                let lkey = LocalKey(local.lkey);
                let local = LocalSegment { address: start + offset, length: part, lkey };
                let operation = Operation::Read(remote);
                let request = WorkRequest { id: posted as u64, operation, local, signaled: true };
                // SAFETY: the bytes are borrowed until this function returns, which is after all
                // requests have completed, or after `self` and its queue pair were dropped.
                unsafe { self.queue_pair.post(std::iter::once(request)) }.map_err(|(_, error)| error)?;
                posted += 1;
            }
            let mut take = || {
                self.sends.poll(|completion| {
                    completed += 1;
                    if let Some((status, _)) = completion.error() {
                        failure = failure.or(Some(Failure::from_status(status)));
                    }
                })
            };
            if take()? == 0 {
                // Completions before the request for an event cause none.
                self.sends.request_event()?;
                if take()? == 0 {
                    self.sleep(until, is_over)?;
                }
            }
            if let Some(failure) = failure {
                return Err(ReadError::Failed(failure));
            }
        }
        Ok(self)
    }

    /// Sleeps until the device has an event, for a short time at most.
    fn sleep(&self, until: Instant, is_over: &dyn Fn() -> bool) -> std::result::Result<(), ReadError> {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ReadError::TimedOut);
        }
        let milliseconds = left.min(CHECK_INTERVAL).as_millis().max(1) as u16;
        let mut events = [PollFd::new(self.sends.as_fd(), PollFlags::POLLIN)];
        // The result does not matter: the caller polls again, also after an interrupt.
        if poll(&mut events, PollTimeout::from(milliseconds)) == Ok(0) && is_over() {
            return Err(ReadError::Cancelled);
        }
        Ok(())
    }
}

impl fmt::Debug for ReadConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadConnection").field("own", &self.own).finish_non_exhaustive()
    }
}
