//! A receiver of blocks of other hosts.

use std::io;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::sync::{Arc, Mutex};

use hostbuf_os::{process, thread};
use hostbuf_pool::Pool;

use super::block_supply::BlockSupply;
use super::frame_reads::FrameReader;
use super::options::MirrorReceiverOptions;
use super::peer_link::ReceiverShared;
use super::receiver_state::{ReceiverCounters, ReceiverState};
use super::service::accept_all;
use crate::error::MirrorError;
use crate::readiness::WakeEvent;

/// A receiver of blocks of other hosts. It publishes them in the pool of its host, and tells the
/// senders the tokens of the copies.
///
/// It listens at one address. The senders do not authenticate themselves, so the address must be
/// one of a trusted network. All senders share its blocks: with several of them, `retain` counts
/// the copies of all.
///
/// Dropping it ends its connections and its threads. The published copies stay readable for the
/// linger time of the broker.
pub struct MirrorReceiver {
    shared: Arc<ReceiverShared>,
    address: SocketAddr,
    stop: Arc<WakeEvent>,
    thread: Option<thread::Thread>,
    /// The process that made the receiver: a forked child has no thread of it.
    process: u32,
}

impl MirrorReceiver {
    /// Listens at an address. Port 0 means any free port.
    ///
    /// # Errors
    /// [`MirrorError::Invalid`]; [`MirrorError::Os`].
    pub fn listen(
        pool: &Pool,
        address: impl ToSocketAddrs + std::fmt::Debug,
        options: MirrorReceiverOptions,
    ) -> Result<MirrorReceiver, MirrorError> {
        options.check()?;
        let listening = || format!("listening at {address:?} on {}", process::host_name());
        let listener =
            TcpListener::bind(&address).map_err(with_remedy).map_err(MirrorError::os(listening()))?;
        listener.set_nonblocking(true).map_err(MirrorError::os(listening()))?;
        let own = listener.local_addr().map_err(MirrorError::os(listening()))?;
        let identity = process::random().map_err(MirrorError::os("drawing a random number"))?;
        let stop = WakeEvent::new().map_err(MirrorError::os("opening an event descriptor"))?;
        let stop = Arc::new(stop);
        let supply = BlockSupply::new(pool.clone(), options.clone());
        let (state, reader) = (Mutex::new(ReceiverState::default()), FrameReader::new(&options));
        let shared = Arc::new(ReceiverShared { options, identity, supply, reader, state });
        let (of_thread, thread_stop) = (shared.clone(), stop.clone());
        let thread =
            thread::spawn(c"hostbuf-mirror", move || accept_all(&of_thread, &listener, &thread_stop))
                .map_err(MirrorError::os("starting a thread"))?;
        let (thread, process) = (Some(thread), std::process::id());
        Ok(MirrorReceiver { shared, address: own, stop, thread, process })
    }

    /// Returns the address at which it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns counts of connections and frames.
    #[must_use]
    pub fn counters(&self) -> ReceiverCounters {
        self.shared.state().counters()
    }

    /// Returns the last reason why the bytes of frames came by TCP although the receiver has an
    /// RDMA device. Returns `None` if there was no such reason, and if the receiver has no device.
    #[must_use]
    pub fn tcp_reason(&self) -> Option<String> {
        self.shared.reader.tcp_reason()
    }
}

/// Adds the remedy to an error of `bind(2)`.
fn with_remedy(error: io::Error) -> io::Error {
    let remedy = match error.kind() {
        io::ErrorKind::AddrInUse => "end the program that listens there, or choose another port",
        io::ErrorKind::AddrNotAvailable => {
            "choose an address of this host, or 0.0.0.0 or [::] for all of its addresses"
        }
        io::ErrorKind::PermissionDenied => "choose a port from 1024 to 65535",
        _ => return error,
    };
    io::Error::new(error.kind(), format!("{error}; {remedy}"))
}

impl std::fmt::Debug for MirrorReceiver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MirrorReceiver").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Drop for MirrorReceiver {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            return;
        }
        self.shared.state().stop();
        self.stop.notify();
        if let Some(thread) = self.thread.take() {
            thread.join();
        }
    }
}
