//! A TCP socket that reports bytes when many have arrived.

#![allow(unsafe_code, reason = "options of sockets that have no safe wrapper")]

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
/// The time after which the last segment of a response is late.
const PATIENCE_AT_END: Duration = Duration::from_millis(10);
/// The length of a segment, in bytes, if the kernel does not tell that of a connection.
const LONGEST_SEGMENT: u32 = 64 << 10;

/// A TCP socket that reports bytes when many have arrived (`SO_RCVLOWAT`): the thread wakes up a
/// few times for each MiB, also if the server sends it in small parts.
///
/// A server with Nagle's algorithm (RFC 896) holds a short segment at the end of a response back
/// until those before it are acknowledged, and a client may delay acknowledgements (RFC 1122,
/// section 4.2.3.2); Linux does so for at least 40 ms. If the last segment of a response comes
/// late, the socket therefore wakes up before it in all later responses, and acknowledges what it
/// has read.
pub(super) struct LowWaterSocket {
    pub(super) tcp: TcpStream,
    mark: u32,
    /// The highest mark that is set: 1 if bytes come slowly, or if the kernel has no marks.
    highest_mark: u32,
    /// The bytes that the server may hold back: 0 if no last segment has come late.
    held_back: u32,
}

impl LowWaterSocket {
    pub(super) fn new(tcp: TcpStream) -> LowWaterSocket {
        LowWaterSocket { tcp, mark: 1, highest_mark: HIGHEST_MARK, held_back: 0 }
    }

    /// Reads bytes into `into`, which has room. The server has at least `expected` bytes to send,
    /// so a mark of at most that number is reached. Returns the number of bytes: 0 at the end of
    /// the connection, or if `into` is full.
    pub(super) async fn read(&mut self, into: &mut impl BufMut, expected: u64) -> io::Result<usize> {
        let before_end = expected.saturating_sub(self.held_back.into());
        let mark = before_end.clamp(1, self.highest_mark.into()) as u32;
        if self.set_mark(mark).is_err() {
            self.highest_mark = 1;
        }
        if self.mark > 1 {
            let is_end = expected <= self.mark.into();
            let step = if is_end { PATIENCE_AT_END } else { PATIENCE };
            let mut waited = Duration::ZERO;
            while waited < PATIENCE {
                if let Ok(result) = timeout(step, self.tcp.read_buf(into)).await {
                    return result;
                }
                if is_end && self.lacks_segment(expected) {
                    break;
                }
                waited += step;
            }
            self.highest_mark = 1;
            self.set_mark(1)?;
        }
        let may_be_held = if self.highest_mark == 1 { LONGEST_SEGMENT } else { self.held_back };
        if expected <= may_be_held.into() {
            self.acknowledge();
        }
        self.tcp.read_buf(into).await
    }

    /// Returns whether at most one segment of `expected` bytes has not arrived, and remembers that
    /// the server may hold it back.
    fn lacks_segment(&mut self, expected: u64) -> bool {
        let longest = longest_segment(&self.tcp).ok().filter(|&bytes| bytes > 0).unwrap_or(LONGEST_SEGMENT);
        let lacks = arrived(&self.tcp).is_ok_and(|bytes| expected - bytes.min(expected) <= longest.into());
        if lacks {
            self.held_back = longest;
        }
        lacks
    }

    /// Acknowledges all bytes that were read, for a server that waits for that.
    pub(super) fn acknowledge(&self) {
        // If it fails, the kernel acknowledges them later.
        let _ = self.tcp.set_quickack(true);
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

/// Returns the number of bytes that have arrived and were not read.
fn arrived(socket: &TcpStream) -> io::Result<u64> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the kernel writes one integer.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), libc::FIONREAD, &raw mut bytes) };
    Errno::result(result)?;
    Ok(bytes.max(0) as u64)
}

/// Returns the length of the longest segment that the peer may send, in bytes.
fn longest_segment(socket: &TcpStream) -> io::Result<u32> {
    Ok(tcp_info(socket)?.tcpi_advmss)
}

fn tcp_info(socket: &TcpStream) -> io::Result<libc::tcp_info> {
    // SAFETY: all fields are integers.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut length = size_of_val(&info) as libc::socklen_t;
    let (level, option) = (libc::IPPROTO_TCP, libc::TCP_INFO);
    // SAFETY: the kernel writes at most `length` bytes to `info`.
    let result = unsafe {
        libc::getsockopt(socket.as_raw_fd(), level, option, (&raw mut info).cast(), &raw mut length)
    };
    Errno::result(result)?;
    Ok(info)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{Ipv4Addr, TcpListener};
    use std::pin::pin;

    use futures::poll;
    use tokio::io::AsyncWriteExt;
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

    /// Makes a connection, and passes the socket and its peer on.
    fn connected(test: impl AsyncFnOnce(LowWaterSocket, std::net::TcpStream)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
            let address = listener.local_addr().expect("it is bound");
            let socket = LowWaterSocket::new(TcpStream::connect(address).await.expect("it listens"));
            let (peer, _) = listener.accept().expect("a connection");
            test(socket, peer).await;
        });
    }

    #[test]
    fn every_byte_is_reported_though_more_are_expected() {
        connected(async |mut socket, mut peer| {
            assert_eq!(read_while_sent(&mut socket, &mut peer, 1, 10).await, 10);
            // Below the mark: the kernel does not report them.
            assert_eq!(read_while_sent(&mut socket, &mut peer, 1 << 20, 20_000).await, 20_000);
            assert_eq!((socket.mark, socket.highest_mark, socket.held_back), (1, 1, 0));
            // The slow server is not waited for again, until the next response.
            assert_eq!(read_while_sent(&mut socket, &mut peer, 1 << 20, 30).await, 30);
            assert_eq!(socket.mark, 1);
            socket.reset().expect("a socket");
            peer.write_all(&[1; 30_000]).expect("it is connected");
            assert_eq!(socket.read(&mut Vec::with_capacity(1 << 20), 30_000).await.expect("bytes"), 30_000);
            assert_eq!((socket.mark, socket.highest_mark), (30_000, HIGHEST_MARK));
            socket.reset().expect("a socket");
            assert_eq!(socket.mark, 1);
            // The end of the connection is reported, also below the mark.
            drop(peer);
            let end = timeout(Duration::from_secs(20), socket.read(&mut Vec::new(), 1 << 20)).await;
            assert_eq!(end.expect("the end is reported").expect("it is no error"), 0);
        });
    }

    #[test]
    fn the_last_segment_is_waited_for_alone_if_it_came_late() {
        connected(async |mut socket, mut peer| {
            assert_eq!(read_while_sent(&mut socket, &mut peer, 20_000, 19_000).await, 19_000);
            let longest = socket.held_back;
            assert!(longest > 1000, "the last bytes were late, and a segment has at most {longest} bytes");
            // Also in the next responses.
            socket.reset().expect("a socket");
            peer.write_all(&[1; 2000]).expect("it is connected");
            let mut into = Vec::with_capacity(1 << 20);
            let expected = u64::from(longest) + 2000;
            assert_eq!(socket.read(&mut into, expected).await.expect("bytes"), 2000);
            assert_eq!(socket.mark, 2000);
            assert_eq!(read_while_sent(&mut socket, &mut peer, longest.into(), 3000).await, 3000);
            assert_eq!(socket.mark, 1);
        });
    }

    #[test]
    fn a_slow_end_of_several_segments_is_not_held_back() {
        connected(async |mut socket, mut peer| {
            assert_eq!(read_while_sent(&mut socket, &mut peer, 200_000, 19_000).await, 19_000);
            assert_eq!((socket.mark, socket.highest_mark, socket.held_back), (1, 1, 0));
        });
    }

    #[test]
    fn bytes_before_a_late_segment_are_acknowledged_at_once() {
        connected(async |mut socket, mut peer| {
            socket.held_back = 10;
            let mut into = Vec::with_capacity(1 << 20);
            let sent = |socket: &LowWaterSocket| tcp_info(&socket.tcp).expect("a socket").tcpi_segs_out;
            let mut before = 0;
            // After some requests and responses the kernel delays acknowledgements.
            for _ in 0..20 {
                socket.tcp.write_all(&[1]).await.expect("it is connected");
                peer.read_exact(&mut [0]).expect("it is connected");
                before = sent(&socket);
                peer.write_all(&[1; 10]).expect("it is connected");
                assert_eq!(socket.read(&mut into, 20).await.expect("bytes"), 10);
                assert_eq!(socket.mark, 10);
            }
            {
                let mut rest = pin!(socket.read(&mut into, 10));
                assert!(poll!(rest.as_mut()).is_pending());
            }
            let after = sent(&socket);
            assert!(after > before, "{before} segments were sent before, and {after} after");
        });
    }
}
