//! A TCP socket that reports bytes when many have arrived.

#![allow(unsafe_code, reason = "an option of sockets that has no safe wrapper")]

use std::io;
use std::os::fd::AsRawFd;
use std::time::Duration;

use bytes::BufMut;
use nix::errno::Errno;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::time::timeout;

/// The most bytes that a read waits for. They fit into the processor's cache.
const MARK: u32 = 256 << 10;
/// The time after which fewer bytes are enough.
const PATIENCE: Duration = Duration::from_millis(100);

/// A TCP socket that reports bytes when many have arrived: the thread wakes up a few times for each
/// MiB, also if the server sends it in small parts.
pub(super) struct LowWaterSocket {
    pub(super) tcp: TcpStream,
    mark: u32,
    /// True if bytes come slowly, so that each read takes what is there.
    is_slow: bool,
}

impl LowWaterSocket {
    pub(super) fn new(tcp: TcpStream) -> LowWaterSocket {
        LowWaterSocket { tcp, mark: 1, is_slow: false }
    }

    /// Reads bytes into `into`, which has room. At least `expected` bytes are on their way. Returns
    /// the number of bytes: 0 at the end of the connection.
    pub(super) async fn read(&mut self, into: &mut impl BufMut, expected: u64) -> io::Result<usize> {
        let mark = if self.is_slow {
            1
        } else {
            expected.clamp(1, std::env::var("MARKB").map_or(u64::from(MARK), |t| t.parse().unwrap())) as u32
        };
        self.set_mark(mark)?;
        if mark > 1 {
            match timeout(PATIENCE, self.tcp.read_buf(into)).await {
                Ok(result) => return result,
                Err(_) => {
                    self.is_slow = true;
                    self.set_mark(1)?;
                }
            }
        }
        self.tcp.read_buf(into).await
    }

    /// Reports every byte from now on.
    pub(super) fn reset(&mut self) -> io::Result<()> {
        self.is_slow = false;
        self.set_mark(1)
    }

    fn set_mark(&mut self, mark: u32) -> io::Result<()> {
        if mark != self.mark {
            set_low_water_mark(&self.tcp, mark)?;
            self.mark = mark;
        }
        Ok(())
    }
}

/// Sets the number of bytes of which epoll reports a socket as readable.
fn set_low_water_mark(socket: &TcpStream, mark: u32) -> io::Result<()> {
    let (level, option) = (libc::SOL_SOCKET, libc::SO_RCVLOWAT);
    // SAFETY: the value is an integer of the stated length, which the kernel only reads.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            option,
            (&raw const mark).cast(),
            size_of_val(&mark) as u32,
        )
    };
    Errno::result(result)?;
    Ok(())
}
