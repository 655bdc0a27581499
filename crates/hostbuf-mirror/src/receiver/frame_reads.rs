//! Reading frames by RDMA.

use std::io;
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::sync::Mutex;
use std::time::Instant;

use hostbuf_os::poison::IgnorePoison;
use hostbuf_pool::Block;
use hostbuf_rdma::{ReadAddress, ReadConnection, ReadDevice};
use hostbuf_register::Access;
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::options::MirrorReceiverOptions;
use crate::registration_retry::RegistrationRetry;
use crate::wire::ReadEndpoint;

/// The device by which a receiver reads frames, if it has one.
#[derive(Debug)]
pub(super) struct FrameReader {
    device: Option<ReadDevice>,
    /// The times at which the device is asked again that has refused the receiver's memory.
    retry: RegistrationRetry,
    /// The last reason why bytes were not read by RDMA.
    tcp_reason: Mutex<Option<String>>,
}

/// The receiver's end of a connection by which it reads frames.
#[derive(Debug)]
pub(super) struct FrameReads {
    /// There is none after a read has failed.
    connection: Option<ReadConnection>,
    device: ReadDevice,
}

impl FrameReader {
    /// Makes the reader for the device of the options.
    pub(super) fn new(options: &MirrorReceiverOptions) -> FrameReader {
        let retry = RegistrationRetry::default();
        FrameReader { device: options.rdma.clone(), retry, tcp_reason: Mutex::default() }
    }

    /// Makes an end of a connection to the sender's end. Returns `None` if one of them has no
    /// device, or if the device has refused the receiver's memory repeatedly and lately.
    pub(super) fn accept(&self, other: &ReadEndpoint) -> Option<FrameReads> {
        let device = self.device.as_ref()?;
        if !self.retry.is_due(Instant::now()) {
            // The refusals have set the reason.
            return None;
        }
        let Some(other) = ReadAddress::from_bytes(other) else {
            // A sender that gives RDMA up for a while has had a reason, such as a failed read.
            let why = "the sender offers no RDMA: it uses no device, or its device has refused";
            self.tcp_reason.lock().ignore_poison().get_or_insert_with(|| why.to_owned());
            return None;
        };
        let connected = device.prepare().and_then(|own| own.connect(other).map(|()| own));
        match connected {
            Ok(connection) => Some(FrameReads { connection: Some(connection), device: device.clone() }),
            Err(error) => {
                self.use_tcp(error.to_string());
                None
            }
        }
    }

    /// Returns the last reason why bytes were not read by RDMA although there is a device.
    pub(super) fn tcp_reason(&self) -> Option<String> {
        self.tcp_reason.lock().ignore_poison().clone()
    }

    fn use_tcp(&self, why: String) {
        tracing::warn!(why, "a mirror receives by TCP");
        *self.tcp_reason.lock().ignore_poison() = Some(why);
    }

    /// Reads the first `length` bytes of a block from the sender's memory. `is_over` tells whether
    /// they are not wanted any more; it need not look at the stream.
    ///
    /// # Errors
    /// An error ends the connection.
    pub(super) fn read(
        &self,
        reads: &mut FrameReads,
        (block, length): (&mut Block, u64),
        remote: (u64, u32),
        until: Instant,
        (stream, is_over): (&TcpStream, &dyn Fn() -> bool),
    ) -> io::Result<()> {
        let key = block.register(reads.device.registrar(), Access::WRITE).map_err(|error| {
            // The sender connects again, and sends by TCP if there are no reads.
            self.use_tcp(error.to_string());
            self.retry.refuse(Instant::now());
            io::Error::other(error)
        })?;
        self.retry.accept();
        let Some(connection) = reads.connection.take() else {
            return Err(io::ErrorKind::NotConnected.into());
        };
        let bytes = &mut block.as_mut_slice()[..length as usize];
        let is_over = || is_over() || has_ended(stream);
        let read = connection.read(bytes, key, remote, until, &is_over);
        let connection = read.map_err(|error| {
            if !is_over() {
                self.use_tcp(error.to_string());
            }
            io::Error::other(error)
        })?;
        reads.connection = Some(connection);
        Ok(())
    }
}

impl FrameReads {
    /// Returns the address of this end.
    pub(super) fn endpoint(&self) -> ReadEndpoint {
        self.connection.as_ref().map_or([0; ReadAddress::SIZE], |own| own.address().to_bytes())
    }
}

/// Returns whether the peer has ended the stream, also behind bytes that were not read yet.
fn has_ended(stream: &TcpStream) -> bool {
    let hung_up = PollFlags::from_bits_retain(libc::POLLRDHUP);
    let mut events = [PollFd::new(stream.as_fd(), hung_up)];
    poll(&mut events, PollTimeout::ZERO).is_ok_and(|count| count > 0)
}
