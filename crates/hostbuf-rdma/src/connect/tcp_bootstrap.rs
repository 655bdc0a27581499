//! A bootstrap over TCP.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::connect::bootstrap::Bootstrap;
use crate::peer::PeerId;
use crate::sync::lock;
use hostbuf::error::{Error, Result};

/// The first bytes of a connection, with the version of the protocol in the last one.
const GREETING: [u8; 8] = *b"hbboot\0\x01";
/// The time that a new connection has for its greeting.
const GREETING_TIMEOUT: Duration = Duration::from_secs(5);
/// The interval between two attempts to connect to a leader that does not listen yet.
const RETRY_INTERVAL: Duration = Duration::from_millis(20);
const MAX_RECORD: usize = 1 << 20;

/// A bootstrap over TCP, for processes that have neither MPI nor a launcher in common.
///
/// The process with index 0 leads: the others connect to it, and it distributes the records. It has
/// no authentication, so use it on a trusted network.
///
/// ```
/// use std::net::TcpListener;
/// use std::time::Duration;
/// use hostbuf_rdma::{Bootstrap, PeerId, TcpBootstrap};
///
/// let timeout = Duration::from_secs(30);
/// let listener = TcpListener::bind("127.0.0.1:0")?;
/// let leader = listener.local_addr()?;
/// // In another process, on this host or another one:
/// let join = move || TcpBootstrap::join(PeerId(1), 2, leader, timeout)?.exchange(b"one");
/// let other = std::thread::spawn(join);
/// let records = TcpBootstrap::lead(listener, 2, timeout)?.exchange(b"zero")?;
/// assert_eq!(records, [&b"zero"[..], b"one"]);
/// # assert_eq!(other.join().unwrap()?, records);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct TcpBootstrap {
    index: PeerId,
    count: usize,
    timeout: Duration,
    /// The connections: on the leader to all others in the order of their indices, elsewhere to the
    /// leader. An exchange holds the lock.
    streams: Mutex<Vec<TcpStream>>,
}

impl TcpBootstrap {
    /// Waits until all other processes have connected to `listener`. This process has index 0 of
    /// `count`.
    ///
    /// # Errors
    /// [`Error::Collective`] if they do not all connect within `timeout`, or two of them have the
    /// same index.
    pub fn lead(listener: TcpListener, count: usize, timeout: Duration) -> Result<TcpBootstrap> {
        let deadline = Instant::now() + timeout;
        let mut streams: Vec<Option<TcpStream>> = (1..count).map(|_| None).collect();
        listener.set_nonblocking(true).map_err(|e| failed("connect", e))?;
        while let missing @ 1.. = streams.iter().filter(|stream| stream.is_none()).count() {
            let Some(mut stream) = accept(&listener, deadline)? else {
                let total = count - 1;
                let why =
                    format!("{} of {total} processes have connected within {timeout:?}", total - missing);
                return Err(failed("connect", why));
            };
            let Some((PeerId(index), size)) = read_greeting(&mut stream, deadline) else {
                tracing::warn!("ignored a connection that is not from a process of this bootstrap");
                continue;
            };
            if size != count || !(1..count).contains(&index) {
                let why = format!(
                    "a process connected as number {index} of {size}, expected 1 to {} of {count}",
                    count - 1
                );
                return Err(failed("connect", why));
            }
            if streams[index - 1].replace(stream).is_some() {
                return Err(failed(
                    "connect",
                    format!("two processes connected as number {index} of {count}"),
                ));
            }
        }
        let bootstrap =
            TcpBootstrap::new(PeerId(0), count, timeout, streams.into_iter().flatten().collect())?;
        // The others return from `join` when all have connected.
        bootstrap.exchange(&[])?;
        Ok(bootstrap)
    }

    /// Connects to the process with index 0, which listens at `leader` or will do so soon. This
    /// process has index `index` of `count`.
    ///
    /// # Errors
    /// [`Error::Invalid`] for an index that is 0 or not below `count`; [`Error::Collective`] if the
    /// leader does not respond within `timeout`, or ends the connection.
    pub fn join(index: PeerId, count: usize, leader: SocketAddr, timeout: Duration) -> Result<TcpBootstrap> {
        if !(1..count).contains(&index.0) {
            return Err(Error::invalid(format!(
                "invalid index {} of {count} processes: expected 1 to {}",
                index.0,
                count.saturating_sub(1)
            )));
        }
        let deadline = Instant::now() + timeout;
        let mut stream = connect(leader, deadline)?;
        stream.write_all(&greeting(index, count)).map_err(|e| failed("connect", format!("{leader}: {e}")))?;
        let bootstrap = TcpBootstrap::new(index, count, timeout, vec![stream])?;
        bootstrap.exchange(&[])?;
        Ok(bootstrap)
    }

    fn new(index: PeerId, count: usize, timeout: Duration, streams: Vec<TcpStream>) -> Result<TcpBootstrap> {
        // A timeout of zero would mean none.
        let timeout = timeout.max(Duration::from_millis(1));
        for stream in &streams {
            let prepared = stream
                .set_nonblocking(false)
                .and_then(|()| stream.set_nodelay(true))
                .and_then(|()| stream.set_read_timeout(Some(timeout)))
                .and_then(|()| stream.set_write_timeout(Some(timeout)));
            prepared.map_err(|e| failed("connect", e))?;
        }
        Ok(TcpBootstrap { index, count, timeout, streams: Mutex::new(streams) })
    }

    /// Describes an error of the connection to process `peer`.
    fn lost(&self, peer: usize, error: &io::Error) -> Error {
        let why = match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => {
                format!("process {peer} of {} did not respond within {:?}", self.count, self.timeout)
            }
            ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => format!(
                "process {peer} of {} has ended the connection: see its own error message",
                self.count
            ),
            _ => format!("the connection to process {peer} of {} failed: {error}", self.count),
        };
        Error::Collective { operation: "exchange", why }
    }
}

impl Bootstrap for TcpBootstrap {
    fn index(&self) -> PeerId {
        self.index
    }

    fn count(&self) -> usize {
        self.count
    }

    fn exchange(&self, record: &[u8]) -> Result<Vec<Vec<u8>>> {
        if record.len() > MAX_RECORD {
            let why = format!("a record has {} bytes: at most {MAX_RECORD} are possible", record.len());
            return Err(failed("exchange", why));
        }
        let mut streams = lock(&self.streams);
        if self.index == PeerId(0) {
            let mut records = vec![record.to_vec()];
            for (stream, peer) in streams.iter_mut().zip(1..) {
                records.push(read_record(stream).map_err(|e| self.lost(peer, &e))?);
            }
            let all: Vec<u8> = records.iter().flat_map(|record| encode(record)).collect();
            for (stream, peer) in streams.iter_mut().zip(1..) {
                stream.write_all(&all).map_err(|e| self.lost(peer, &e))?;
            }
            return Ok(records);
        }
        let leader = &mut streams[0];
        leader.write_all(&encode(record)).map_err(|e| self.lost(0, &e))?;
        (0..self.count).map(|_| read_record(leader)).collect::<io::Result<_>>().map_err(|e| self.lost(0, &e))
    }
}

impl std::fmt::Debug for TcpBootstrap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TcpBootstrap")
            .field("index", &self.index.0)
            .field("count", &self.count)
            .finish_non_exhaustive()
    }
}

fn failed(operation: &'static str, why: impl ToString) -> Error {
    Error::Collective { operation, why: why.to_string() }
}

/// Encodes a record with its length in front.
fn encode(record: &[u8]) -> Vec<u8> {
    [&(record.len() as u32).to_le_bytes(), record].concat()
}

fn read_record(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let length = u32::from_le_bytes(length) as usize;
    if length > MAX_RECORD {
        return Err(io::Error::new(ErrorKind::InvalidData, format!("a record of {length} bytes is invalid")));
    }
    let mut record = vec![0; length];
    stream.read_exact(&mut record)?;
    Ok(record)
}

/// Accepts a connection. Returns `None` at the deadline.
fn accept(listener: &TcpListener, deadline: Instant) -> Result<Option<TcpStream>> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(None);
        }
        let timeout = i32::try_from(left.as_millis()).unwrap_or(i32::MAX).max(1);
        let timeout = PollTimeout::try_from(timeout).unwrap_or(PollTimeout::MAX);
        // The result does not matter: `accept` says whether there is a connection.
        let _ = poll(&mut [PollFd::new(listener.as_fd(), PollFlags::POLLIN)], timeout);
        match listener.accept() {
            Ok((stream, _)) => return Ok(Some(stream)),
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::ConnectionAborted) => {}
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return Err(failed("connect", e)),
        }
    }
}

fn greeting(index: PeerId, count: usize) -> Vec<u8> {
    [&GREETING[..], &(index.0 as u32).to_le_bytes(), &(count as u32).to_le_bytes()].concat()
}

/// Reads the index and the number of processes of a greeting. Returns `None` for other bytes.
fn read_greeting(stream: &mut TcpStream, deadline: Instant) -> Option<(PeerId, usize)> {
    let timeout = deadline.saturating_duration_since(Instant::now()).min(GREETING_TIMEOUT);
    stream.set_nonblocking(false).ok()?;
    stream.set_read_timeout(Some(timeout.max(Duration::from_millis(1)))).ok()?;
    let mut bytes = [0; 16];
    stream.read_exact(&mut bytes).ok()?;
    let number = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes")) as usize;
    (bytes[..8] == GREETING).then(|| (PeerId(number(8)), number(12)))
}

fn connect(leader: SocketAddr, deadline: Instant) -> Result<TcpStream> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        match TcpStream::connect_timeout(&leader, left) {
            Ok(stream) => return Ok(stream),
            Err(error) if Instant::now() + RETRY_INTERVAL >= deadline => {
                return Err(failed("connect", format!("the leader at {leader} does not respond: {error}")));
            }
            Err(_) => thread::sleep(RETRY_INTERVAL),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);
    const SHORT: Duration = Duration::from_millis(50);

    fn listener() -> (TcpListener, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("its address");
        (listener, address)
    }

    /// Runs `process` in `count` threads with a bootstrap each, and returns the results in order.
    fn run<T: Send>(count: usize, process: impl Fn(TcpBootstrap) -> T + Sync) -> Vec<T> {
        let (listener, leader) = listener();
        let process = &process;
        thread::scope(|scope| {
            let join =
                |index| process(TcpBootstrap::join(PeerId(index), count, leader, LONG).expect("a leader"));
            let others: Vec<_> = (1..count).map(|index| scope.spawn(move || join(index))).collect();
            let first = process(TcpBootstrap::lead(listener, count, LONG).expect("all connect"));
            let others = others.into_iter().map(|thread| thread.join().expect("no panic"));
            std::iter::once(first).chain(others).collect()
        })
    }

    #[test]
    fn every_process_gets_all_records_in_order() {
        for count in [1, 2, 5] {
            let seen = run(count, |bootstrap| {
                let record = |index: usize, round: usize| vec![index as u8; index * 100_000 + round];
                (0..3)
                    .map(|round| {
                        let records = bootstrap.exchange(&record(bootstrap.index().0, round)).unwrap();
                        records == (0..count).map(|index| record(index, round)).collect::<Vec<_>>()
                    })
                    .collect::<Vec<_>>()
            });
            assert_eq!(seen, vec![vec![true; 3]; count]);
        }
    }

    #[test]
    fn a_process_that_ends_is_an_error_on_all_others() {
        let seen = run(3, |bootstrap| match bootstrap.index() {
            PeerId(1) => String::new(),
            _ => bootstrap.exchange(b"record").unwrap_err().to_string(),
        });
        assert!(seen[0].contains("process 1 of 3 has ended the connection"), "{seen:?}");
        // The leader returned its error, and ended all connections.
        assert!(seen[2].contains("process 0 of 3 has ended the connection"), "{seen:?}");
    }

    #[test]
    fn a_process_that_does_not_connect_is_an_error() {
        let (listener, leader) = listener();
        let error = TcpBootstrap::lead(listener, 3, SHORT).unwrap_err().to_string();
        assert!(error.contains("0 of 2 processes have connected within 50ms"), "{error}");
        let error = TcpBootstrap::join(PeerId(1), 2, leader, SHORT).unwrap_err().to_string();
        assert!(error.contains(&format!("the leader at {leader} does not respond")), "{error}");
    }

    #[test]
    fn invalid_indices_are_errors() {
        let (_, leader) = listener();
        for (index, count) in [(0, 2), (2, 2), (0, 0)] {
            let error = TcpBootstrap::join(PeerId(index), count, leader, SHORT).unwrap_err();
            assert!(matches!(error, Error::Invalid { .. }), "{error}");
        }
        for (greetings, why) in [
            ([(1, 3), (1, 3)], "two processes connected as number 1 of 3"),
            ([(1, 3), (2, 4)], "a process connected as number 2 of 4, expected 1 to 2 of 3"),
            ([(1, 3), (0, 3)], "a process connected as number 0 of 3, expected 1 to 2 of 3"),
        ] {
            let (listener, leader) = listener();
            let mut others = greetings.map(|(index, count)| {
                let mut stream = TcpStream::connect(leader).expect("it listens");
                stream.write_all(&greeting(PeerId(index), count)).expect("it listens");
                stream
            });
            let error = TcpBootstrap::lead(listener, 3, LONG).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
            for other in &mut others {
                let ended = other.read(&mut [0]);
                assert!(ended.is_err() || ended.is_ok_and(|bytes| bytes == 0), "the connection is open");
            }
        }
    }

    #[test]
    fn connections_of_other_programs_are_ignored() {
        let (listener, leader) = listener();
        drop(TcpStream::connect(leader).expect("it listens"));
        let mut stranger = TcpStream::connect(leader).expect("it listens");
        stranger.write_all(b"GET / HTTP/1.1\r\n\r\n").expect("it listens");
        thread::scope(|scope| {
            let other = scope.spawn(move || TcpBootstrap::join(PeerId(1), 2, leader, LONG)?.exchange(b"one"));
            let records = TcpBootstrap::lead(listener, 2, LONG).unwrap().exchange(b"zero").unwrap();
            assert_eq!(records, [&b"zero"[..], b"one"]);
            assert_eq!(other.join().expect("no panic").unwrap(), records);
        });
    }

    #[test]
    fn a_record_that_is_too_long_is_an_error() {
        let (listener, _) = listener();
        let alone = TcpBootstrap::lead(listener, 1, SHORT).unwrap();
        let error = alone.exchange(&vec![0; MAX_RECORD + 1]).unwrap_err().to_string();
        assert!(error.contains("a record has 1048577 bytes"), "{error}");
    }
}
