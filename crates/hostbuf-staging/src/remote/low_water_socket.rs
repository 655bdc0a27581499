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

/// The highest low-water mark, in bytes. So many fit into the processor's cache.
const HIGHEST_MARK: u32 = 256 << 10;
/// The time after which fewer bytes are enough.
const PATIENCE: Duration = Duration::from_millis(100);

/// A TCP socket that reports bytes when many have arrived (`SO_RCVLOWAT`): the thread wakes up a
/// few times for each MiB, also if the server sends it in small parts.
pub(super) struct LowWaterSocket {
    pub(super) tcp: TcpStream,
    mark: u32,
    /// The highest mark that is set: 1 if bytes come slowly, or if the kernel has no marks.
    highest_mark: u32,
}

impl LowWaterSocket {
    pub(super) fn new(tcp: TcpStream) -> LowWaterSocket {
        LowWaterSocket { tcp, mark: 1, highest_mark: HIGHEST_MARK }
    }

    /// Reads bytes into `into`, which has room. The server has at least `expected` bytes to send,
    /// so a mark of at most that number is reached. Returns the number of bytes: 0 at the end of
    /// the connection, or if `into` is full.
    pub(super) async fn read(&mut self, into: &mut impl BufMut, expected: u64) -> io::Result<usize> {
        let mark = expected.clamp(1, u64::from(self.highest_mark)) as u32;
        if self.set_mark(mark).is_err() {
            self.highest_mark = 1;
        }
        if self.mark > 1 {
            if let Ok(result) = timeout(PATIENCE, self.tcp.read_buf(into)).await {
                return result;
            }
            self.highest_mark = 1;
            self.set_mark(1)?;
        }
        self.tcp.read_buf(into).await
    }

    /// Makes the socket report every byte from now on.
    pub(super) fn reset(&mut self) -> io::Result<()> {
        self.highest_mark = HIGHEST_MARK;
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

/// Sets the number of bytes from which on epoll reports a socket as readable. The kernel reports a
/// socket that is readable already, so no wake-up is lost.
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

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{Ipv4Addr, TcpListener};

    use tokio::task::yield_now;

    use super::*;

    /// Sends `bytes` bytes while the socket waits for `expected` ones. Returns the number of bytes
    /// that the socket has read.
    async fn read_while_sent(
        socket: &mut LowWaterSocket,
        peer: &mut std::net::TcpStream,
        expected: u64,
        bytes: usize,
    ) -> usize {
        let mut into = Vec::with_capacity(1 << 20);
        let read = timeout(Duration::from_secs(20), socket.read(&mut into, expected));
        let send = async {
            // The socket waits before the bytes are sent.
            for _ in 0..4 {
                yield_now().await;
            }
            peer.write_all(&vec![1; bytes]).expect("it is connected");
        };
        let (read, ()) = tokio::join!(read, send);
        read.expect("the bytes are reported").expect("it is connected")
    }

    #[test]
    fn every_byte_is_reported_though_more_are_expected() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
            let address = listener.local_addr().expect("it is bound");
            let mut socket = LowWaterSocket::new(TcpStream::connect(address).await.expect("it listens"));
            let (mut peer, _) = listener.accept().expect("a connection");
            assert_eq!(read_while_sent(&mut socket, &mut peer, 1, 10).await, 10);
            // Below the mark: the kernel does not report them.
            assert_eq!(read_while_sent(&mut socket, &mut peer, 1 << 20, 20_000).await, 20_000);
            assert_eq!((socket.mark, socket.highest_mark), (1, 1));
            // The slow server is not waited for again, until the next response.
            assert_eq!(read_while_sent(&mut socket, &mut peer, 1 << 20, 30).await, 30);
            assert_eq!(socket.mark, 1);
            socket.reset().expect("a socket");
            assert_eq!(read_while_sent(&mut socket, &mut peer, 30_000, 30_000).await, 30_000);
            assert_eq!((socket.mark, socket.highest_mark), (30_000, HIGHEST_MARK));
            socket.reset().expect("a socket");
            assert_eq!(socket.mark, 1);
            // The end of the connection is reported, also below the mark.
            drop(peer);
            let end = timeout(Duration::from_secs(20), socket.read(&mut Vec::new(), 1 << 20)).await;
            assert_eq!(end.expect("the end is reported").expect("it is no error"), 0);
        });
    }
}
