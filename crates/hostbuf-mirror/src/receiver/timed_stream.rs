//! Reading from a peer that may be slow, or gone.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use nix::sys::socket::{MsgFlags, recv, setsockopt, sockopt};

use crate::keepalive::keep_alive;

/// The idle time after which the kernel probes a peer, in seconds.
const KEEPALIVE_SECONDS: u32 = 10;
/// The time in milliseconds after which a peer that acknowledges no byte of an answer is lost. The
/// kernel sends no keepalive probes while it retransmits the answer.
const UNACKNOWLEDGED_MS: u32 = 40_000;
/// The time for which a read without a deadline sleeps at a time.
const IDLE_INTERVAL: Duration = Duration::from_secs(3600);
/// The size of a read whose bytes are discarded.
const DISCARDED_AT_ONCE: usize = 64 << 10;

/// A socket whose reads have deadlines.
#[derive(Debug)]
pub(super) struct TimedStream {
    stream: TcpStream,
}

impl TimedStream {
    /// Sets the options of the socket: small records are sent at once, and a peer that has vanished
    /// is detected.
    ///
    /// # Errors
    /// As `setsockopt(2)`.
    pub(super) fn new(stream: TcpStream, write_timeout: Duration) -> io::Result<TimedStream> {
        stream.set_nonblocking(false)?;
        stream.set_nodelay(true)?;
        stream.set_write_timeout(Some(write_timeout))?;
        keep_alive(&stream, KEEPALIVE_SECONDS)?;
        setsockopt(&stream, sockopt::TcpUserTimeout, &UNACKNOWLEDGED_MS)?;
        Ok(TimedStream { stream })
    }

    /// Returns the socket.
    pub(super) fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// Waits without a limit for the first byte of `record`, and then at most `limit` for the
    /// others. Returns false if the peer has ended the connection before the first byte.
    ///
    /// # Errors
    /// As `recv(2)`; `UnexpectedEof`; `TimedOut`.
    pub(super) fn read_record(&self, record: &mut [u8], limit: Duration) -> io::Result<bool> {
        self.stream.set_read_timeout(Some(IDLE_INTERVAL))?;
        let first = loop {
            match (&self.stream).read(&mut record[..1]) {
                Ok(bytes) => break bytes,
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
                Err(error) => return Err(error),
            }
        };
        if first == 0 {
            return Ok(false);
        }
        self.read_until(&mut record[1..], Instant::now() + limit)?;
        Ok(true)
    }

    /// Fills `bytes` until `until`.
    ///
    /// # Errors
    /// As `recv(2)`; `UnexpectedEof`; `TimedOut`.
    pub(super) fn read_until(&self, bytes: &mut [u8], until: Instant) -> io::Result<()> {
        let mut done = 0;
        while done < bytes.len() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(ErrorKind::TimedOut.into());
            }
            self.stream.set_read_timeout(Some(left))?;
            match recv(self.stream.as_raw_fd(), &mut bytes[done..], MsgFlags::MSG_WAITALL) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(read) => done += read,
                Err(nix::Error::EAGAIN | nix::Error::EINTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    }

    /// Reads and discards `length` bytes.
    ///
    /// # Errors
    /// As [`read_until`](TimedStream::read_until).
    pub(super) fn discard(&self, length: u64, until: Instant) -> io::Result<()> {
        let mut bytes = vec![0; DISCARDED_AT_ONCE];
        let mut left = length;
        while left > 0 {
            let part = left.min(DISCARDED_AT_ONCE as u64);
            self.read_until(&mut bytes[..part as usize], until)?;
            left -= part;
        }
        Ok(())
    }

    /// Writes a record.
    ///
    /// # Errors
    /// As `send(2)`.
    pub(super) fn write(&self, record: &[u8]) -> io::Result<()> {
        (&self.stream).write_all(record)
    }
}
