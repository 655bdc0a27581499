//! A bootstrap over TCP.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::connect::bootstrap::Bootstrap;
use crate::connect::bootstrap_error::BootstrapError;
use crate::connect::greeting::{self, Arrivals, GreetedPeer};
use crate::connect::record_stream::{MAX_RECORD, RecordStream, encode};
use crate::peer::PeerId;
use crate::sync::lock;
use hostbuf::error::{Error, Result};

/// The maximum number of processes, far above the number of file descriptors of the root.
const MAX_PROCESSES: usize = 1 << 20;
/// The longest time limit. A longer one might lie beyond the range of the clock.
const MAX_TIMEOUT: Duration = Duration::from_secs(10 * 365 * 86_400);

/// A bootstrap over TCP, for processes that have neither MPI nor a launcher in common.
///
/// The process with index 0 is the root: the others connect to it, and it distributes the records.
/// It has no authentication, so use it on a trusted network.
///
/// After an error the connections are closed, so the other processes get an error too, and every
/// later exchange fails with the first error. Make a new bootstrap then.
///
/// ```
/// use std::net::TcpListener;
/// use std::time::Duration;
/// use hostbuf_rdma::{Bootstrap, PeerId, TcpBootstrap};
///
/// let timeout = Duration::from_secs(30);
/// let listener = TcpListener::bind("127.0.0.1:0")?;
/// let root = listener.local_addr()?;
/// // In another process, on this host or another one:
/// let join = move || TcpBootstrap::join(PeerId(1), 2, root, timeout)?.exchange(b"one");
/// let other = std::thread::spawn(join);
/// let records = TcpBootstrap::listen(listener, 2, timeout)?.exchange(b"zero")?;
/// assert_eq!(records, [&b"zero"[..], b"one"]);
/// # assert_eq!(other.join().unwrap()?, records);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct TcpBootstrap {
    index: PeerId,
    count: usize,
    timeout: Duration,
    /// The connections. An exchange holds the lock.
    state: Mutex<BootstrapState>,
}

enum BootstrapState {
    /// The connections: on the root to all others in the order of their indices, elsewhere to the
    /// root.
    Connected(Vec<RecordStream>),
    /// The first error. The connections are closed, since a peer may have sent or received a part
    /// of a record.
    Failed(BootstrapError),
}

impl TcpBootstrap {
    /// Waits until all other processes have connected to `listener`. This process has index 0 of
    /// `count`. `timeout` also limits each later exchange.
    ///
    /// # Errors
    /// [`Error::Invalid`] if `count` is 0 or above a million. [`Error::Bootstrap`] with a
    /// [`BootstrapError`] if the processes do not all connect within `timeout`, if two of them have
    /// the same index, or if one of them has another version of hostbuf.
    pub fn listen(listener: TcpListener, count: usize, timeout: Duration) -> Result<TcpBootstrap> {
        if !(1..=MAX_PROCESSES).contains(&count) {
            let what = format!("invalid number of processes {count}: expected 1 to {MAX_PROCESSES}");
            return Err(Error::invalid(what));
        }
        let until = limit(timeout);
        let mut streams: Vec<Option<RecordStream>> = (1..count).map(|_| None).collect();
        let mut arrivals = Arrivals::new(listener)
            .map_err(|error| BootstrapError::Listener { source: Arc::new(error) }.of("connect"))?;
        while let missing @ 1.. = streams.iter().filter(|stream| stream.is_none()).count() {
            let newcomer = arrivals.next(until).map_err(|reason| reason.of("connect"))?;
            let Some(GreetedPeer { stream, peer, count: size }) = newcomer else {
                let expected = count - 1;
                let connected = expected - missing;
                return Err(BootstrapError::Missing { connected, expected, timeout }.of("connect"));
            };
            if size != count || !(1..count).contains(&peer.0) {
                let reason = BootstrapError::Contradiction { peer, count: size, root_count: count };
                return Err(reason.of("connect"));
            }
            if streams[peer.0 - 1].replace(stream).is_some() {
                return Err(BootstrapError::Duplicate { peer, count }.of("connect"));
            }
        }
        let streams = streams.into_iter().flatten().collect();
        TcpBootstrap::new(PeerId(0), count, timeout, streams).connected(until)
    }

    /// Connects to the process with index 0, which listens at `root` or will do so soon, and
    /// waits until all processes have connected. This process has index `index` of `count`.
    /// `timeout` also limits each later exchange.
    ///
    /// # Errors
    /// [`Error::Invalid`] for an index that is 0 or not below `count`; [`Error::Bootstrap`] with a
    /// [`BootstrapError`] if not all processes have connected within `timeout`, or if the root ends
    /// the connection, has another version of hostbuf, or is another program.
    pub fn join(index: PeerId, count: usize, root: SocketAddr, timeout: Duration) -> Result<TcpBootstrap> {
        if !(1..count.min(MAX_PROCESSES + 1)).contains(&index.0) {
            return Err(Error::invalid(format!(
                "invalid index {index} of {count} processes: expected 1 to {}",
                count.saturating_sub(1)
            )));
        }
        let until = limit(timeout);
        let stream = greeting::connect(index, count, root, until).map_err(|reason| reason.of("connect"))?;
        TcpBootstrap::new(index, count, timeout, vec![stream]).connected(until)
    }

    fn new(index: PeerId, count: usize, timeout: Duration, streams: Vec<RecordStream>) -> TcpBootstrap {
        TcpBootstrap { index, count, timeout, state: Mutex::new(BootstrapState::Connected(streams)) }
    }

    /// Waits until all processes have connected, which the root reports by the first exchange.
    fn connected(self, until: Instant) -> Result<TcpBootstrap> {
        self.exchange_until(&[], until)?;
        Ok(self)
    }

    fn exchange_until(&self, record: &[u8], until: Instant) -> Result<Vec<Vec<u8>>> {
        let mut state = lock(&self.state);
        let result = match &mut *state {
            BootstrapState::Connected(streams) => self.exchange_over(streams, record, until),
            BootstrapState::Failed(first) => {
                return Err(BootstrapError::Earlier { first: Box::new(first.clone()) }.into());
            }
        };
        result.map_err(|reason| {
            *state = BootstrapState::Failed(reason.clone());
            reason.into()
        })
    }

    /// Exchanges records.
    fn exchange_over(
        &self,
        streams: &mut [RecordStream],
        record: &[u8],
        until: Instant,
    ) -> std::result::Result<Vec<Vec<u8>>, BootstrapError> {
        if record.len() > MAX_RECORD {
            return Err(BootstrapError::RecordTooLong { length: record.len(), limit: MAX_RECORD });
        }
        if self.index == PeerId(0) {
            let peers = || (1..self.count).map(PeerId);
            let mut records = vec![record.to_vec()];
            for (stream, peer) in streams.iter_mut().zip(peers()) {
                records.push(stream.read_record(until).map_err(|e| self.reason(peer, e))?);
            }
            let all: Vec<u8> = records.iter().flat_map(|record| encode(record)).collect();
            for (stream, peer) in streams.iter_mut().zip(peers()) {
                stream.write(&all, until).map_err(|e| self.reason(peer, e))?;
            }
            return Ok(records);
        }
        let root = &mut streams[0];
        let mut exchange = || {
            root.write(&encode(record), until)?;
            (0..self.count).map(|_| root.read_record(until)).collect::<io::Result<_>>()
        };
        exchange().map_err(|e| self.reason(PeerId(0), e))
    }

    /// Returns the reason why the connection to `peer` failed.
    fn reason(&self, peer: PeerId, error: io::Error) -> BootstrapError {
        let (count, timeout) = (self.count, self.timeout);
        match error.kind() {
            io::ErrorKind::TimedOut => BootstrapError::TimedOut { peer, count, timeout },
            _ => BootstrapError::of_connection(peer, count, error),
        }
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
        self.exchange_until(record, limit(self.timeout))
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

/// Returns the time in `timeout` from now.
fn limit(timeout: Duration) -> Instant {
    Instant::now() + timeout.min(MAX_TIMEOUT)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{ErrorKind, Read, Write};
    use std::net::TcpStream;
    use std::thread;

    const LONG: Duration = Duration::from_secs(60);
    const SHORT: Duration = Duration::from_millis(50);

    fn listener() -> (TcpListener, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("its address");
        (listener, address)
    }

    /// Runs `process` in `count` threads with a bootstrap each, and returns the results in order.
    fn run<T: Send>(count: usize, process: impl Fn(TcpBootstrap) -> T + Sync) -> Vec<T> {
        let (listener, root) = listener();
        let process = &process;
        thread::scope(|scope| {
            let join = |index| process(TcpBootstrap::join(PeerId(index), count, root, LONG).expect("a root"));
            let others: Vec<_> = (1..count).map(|index| scope.spawn(move || join(index))).collect();
            let first = process(TcpBootstrap::listen(listener, count, LONG).expect("all connect"));
            let others = others.into_iter().map(|thread| thread.join().expect("no panic"));
            std::iter::once(first).chain(others).collect()
        })
    }

    /// Returns the reason of an error, which also has to be its source.
    fn reason(error: &Error) -> &BootstrapError {
        let source = std::error::Error::source(error).expect("a source");
        let reason = BootstrapError::downcast_ref(error).expect("an error of the bootstrap");
        assert_eq!(source.to_string(), reason.to_string());
        reason
    }

    /// Returns the reason of an error, and its text.
    fn described<T: std::fmt::Debug>(result: Result<T>) -> (BootstrapError, String) {
        let error = result.unwrap_err();
        (reason(&error).clone(), error.to_string())
    }

    fn greeting(version: u8, index: u32, count: u32) -> Vec<u8> {
        [b"hbboot\0", &[version][..], &index.to_le_bytes(), &count.to_le_bytes()].concat()
    }

    fn is_closed(stream: &mut TcpStream) -> bool {
        let mut rest = Vec::new();
        stream.set_read_timeout(Some(LONG)).expect("a time limit");
        match stream.read_to_end(&mut rest) {
            Ok(_) => true,
            Err(error) => error.kind() == ErrorKind::ConnectionReset,
        }
    }

    #[test]
    fn every_process_gets_all_records_in_order() {
        for count in [1, 2, 5] {
            let seen = run(count, |bootstrap| {
                assert_eq!(bootstrap.count(), count);
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
            PeerId(1) => None,
            _ => Some(described(bootstrap.exchange(b"record"))),
        });
        for (seen, lost) in [(&seen[0], 1), (&seen[2], 0)] {
            let (reason, text) = seen.as_ref().expect("an error");
            assert!(
                matches!(reason, BootstrapError::Lost { peer, count: 3, address: None } if peer.0 == lost),
                "{reason:?}"
            );
            assert!(text.contains(&format!("process {lost} of 3 has ended the connection")), "{text}");
        }
    }

    #[test]
    fn after_an_error_every_exchange_fails_with_the_first_one() {
        // All bootstraps live until all threads have returned: the failing exchange itself closes
        // the connections.
        let seen = run(3, |bootstrap| {
            let record = vec![0; if bootstrap.index() == PeerId(1) { MAX_RECORD + 1 } else { 1 }];
            let errors = [0, 1, 2].map(|_| described(bootstrap.exchange(&record)));
            (errors, bootstrap)
        });
        for ((errors, _), why) in seen.iter().zip([
            "process 1 of 3 has ended the connection",
            "a record has 1048577 bytes",
            "process 0 of 3 has ended the connection",
        ]) {
            let [(first, text), later @ ..] = errors;
            assert!(text.contains(why) && !matches!(first, BootstrapError::Earlier { .. }), "{errors:?}");
            for (reason, text) in later {
                let BootstrapError::Earlier { first: earlier } = reason else { panic!("{errors:?}") };
                assert_eq!(format!("{earlier:?}"), format!("{first:?}"));
                assert!(text.contains("an earlier exchange failed") && text.contains(why), "{errors:?}");
            }
        }
        let too_long = &seen[1].0[0].0;
        assert!(matches!(too_long, BootstrapError::RecordTooLong { limit: MAX_RECORD, .. }), "{too_long:?}");
    }

    #[test]
    fn records_that_arrive_late_are_not_those_of_a_later_exchange() {
        let (listener, root) = listener();
        thread::scope(|scope| {
            let first = scope.spawn(move || TcpBootstrap::listen(listener, 2, LONG));
            let other = TcpBootstrap::join(PeerId(1), 2, root, LONG).unwrap();
            let mut first = first.join().expect("no panic").unwrap();
            first.timeout = SHORT;
            let (reason, error) = described(first.exchange(b"first of 0"));
            assert!(
                matches!(reason, BootstrapError::TimedOut { peer: PeerId(1), count: 2, timeout: SHORT }),
                "{reason:?}"
            );
            assert!(error.contains("process 1 of 2 did not respond within 50ms"), "{error}");
            assert!(other.exchange(b"first of 1").is_err());
            let error = first.exchange(b"second of 0").unwrap_err().to_string();
            assert!(error.contains("an earlier exchange failed (process 1 of 2 did not"), "{error}");
        });
    }

    #[test]
    fn a_process_that_does_not_connect_is_an_error() {
        let (listener, root) = listener();
        let (reason, error) = described(TcpBootstrap::listen(listener, 3, SHORT));
        assert!(
            matches!(reason, BootstrapError::Missing { connected: 0, expected: 2, timeout: SHORT }),
            "{reason:?}"
        );
        assert!(error.contains("0 of 2 processes have connected within 50ms"), "{error}");
        let (reason, error) = described(TcpBootstrap::join(PeerId(1), 2, root, SHORT));
        assert!(
            matches!(&reason, BootstrapError::Unreachable { root: tried, source }
                if *tried == root && source.kind() == ErrorKind::ConnectionRefused),
            "{reason:?}"
        );
        assert!(error.contains(&format!("the root at {root} does not respond")), "{error}");
    }

    #[test]
    fn a_root_that_accepts_and_sends_nothing_is_an_error_in_time() {
        let (_listening, root) = listener();
        let (reason, error) = described(TcpBootstrap::join(PeerId(1), 2, root, SHORT));
        assert!(
            matches!(&reason, BootstrapError::Unreachable { source, .. } if source.kind() == ErrorKind::TimedOut),
            "{reason:?}"
        );
        assert!(error.contains("does not respond: it accepted the connection"), "{error}");
    }

    #[test]
    fn invalid_indices_and_counts_are_errors() {
        let (_, root) = listener();
        for (index, count) in [(0, 2), (2, 2), (0, 0), (MAX_PROCESSES + 1, usize::MAX)] {
            let error = TcpBootstrap::join(PeerId(index), count, root, SHORT).unwrap_err();
            assert!(matches!(error, Error::Invalid { .. }), "{error}");
        }
        for count in [0, MAX_PROCESSES + 1, usize::MAX] {
            let error = TcpBootstrap::listen(listener().0, count, SHORT).unwrap_err();
            assert!(matches!(error, Error::Invalid { .. }), "{error}");
        }
        for (greetings, why) in [
            ([(1, 3), (1, 3)], "two processes connected as number 1 of 3"),
            ([(1, 3), (2, 4)], "a process connected as number 2 of 4, expected 1 to 2 of 3"),
            ([(1, 3), (0, 3)], "a process connected as number 0 of 3, expected 1 to 2 of 3"),
        ] {
            let (listener, root) = listener();
            let mut others = greetings.map(|(index, count)| {
                let mut stream = TcpStream::connect(root).expect("it listens");
                stream.write_all(&greeting(2, index, count)).expect("it listens");
                stream
            });
            let (reason, error) = described(TcpBootstrap::listen(listener, 3, LONG));
            match reason {
                BootstrapError::Duplicate { peer: PeerId(1), count: 3 } => {
                    assert_eq!(greetings[0], greetings[1]);
                }
                BootstrapError::Contradiction { peer, count, root_count: 3 } => {
                    assert_eq!((peer.0 as u32, count as u32), greetings[1]);
                }
                other => panic!("{other:?}"),
            }
            assert!(error.contains(why), "{error}");
            assert!(others.iter_mut().all(is_closed), "a connection is open after: {why}");
        }
    }

    #[test]
    fn both_sides_report_another_version() {
        let (listener, root) = listener();
        let mut newer = TcpStream::connect(root).expect("it listens");
        newer.write_all(&greeting(3, 1, 2)).expect("it listens");
        let (reason, error) = described(TcpBootstrap::listen(listener, 2, LONG));
        let peer = newer.local_addr().expect("its address");
        let is_expected = |reason: &BootstrapError, from| matches!(reason, BootstrapError::OtherVersion { address, version: 3, own_version: 2 } if *address == from);
        assert!(is_expected(&reason, peer), "{reason:?}");
        let why = format!(
            "the process at {peer} has version 3 of the protocol, and this process version 2: use one"
        );
        assert!(error.contains(&why), "{error}");
        let mut answer = [0; 8];
        newer.read_exact(&mut answer).expect("an answer");
        assert_eq!(&answer, b"hbboot\0\x02");

        let ((reason, _), root) = join_to(b"hbboot\0\x03");
        assert!(is_expected(&reason, root), "{reason:?}");
    }

    #[test]
    fn a_port_of_another_program_is_an_error() {
        let ((reason, error), root) = join_to(b"HTTP/1.1 400 Bad Request\r\n");
        assert!(matches!(reason, BootstrapError::NotBootstrap { root: at, .. } if at == root), "{reason:?}");
        let why = format!("the program at {root} is not the root of a bootstrap: it sent \"HTTP/1.1\"");
        assert!(error.contains(&why), "{error}");
        let ((reason, error), root) = join_to(b"");
        assert!(
            matches!(reason, BootstrapError::Lost { peer: PeerId(0), count: 2, address: Some(at) } if at == root),
            "{reason:?}"
        );
        assert!(error.contains(&format!("the root at {root} has ended the connection")), "{error}");
    }

    /// Joins a bootstrap whose root answers with `answer` and ends. Returns the error and the
    /// root's address.
    fn join_to(answer: &'static [u8]) -> ((BootstrapError, String), SocketAddr) {
        let (listener, root) = listener();
        let other = thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("it connects");
            stream.read_exact(&mut [0; 16]).expect("a greeting");
            stream.write_all(answer).expect("it reads");
        });
        let error = described(TcpBootstrap::join(PeerId(1), 2, root, LONG));
        other.join().expect("no panic");
        (error, root)
    }

    #[test]
    fn connections_of_other_programs_are_ignored() {
        let (listener, root) = listener();
        drop(TcpStream::connect(root).expect("it listens"));
        let mut stranger = TcpStream::connect(root).expect("it listens");
        stranger.write_all(b"GET / HTTP/1.1\r\n\r\n").expect("it listens");
        thread::scope(|scope| {
            let other = scope.spawn(move || TcpBootstrap::join(PeerId(1), 2, root, LONG)?.exchange(b"one"));
            let records = TcpBootstrap::listen(listener, 2, LONG).unwrap().exchange(b"zero").unwrap();
            assert_eq!(records, [&b"zero"[..], b"one"]);
            assert_eq!(other.join().expect("no panic").unwrap(), records);
        });
    }

    #[test]
    fn connections_without_a_whole_greeting_delay_no_process() {
        let whole = greeting(2, 1, 2);
        for sent in [0, 1, 8, 15] {
            let (listener, root) = listener();
            // One after the other they would take longer than the bootstrap may.
            let strangers = [(); 20].map(|()| {
                let mut stream = TcpStream::connect(root).expect("it listens");
                stream.write_all(&whole[..sent]).expect("it listens");
                stream
            });
            thread::scope(|scope| {
                let join = move || TcpBootstrap::join(PeerId(1), 2, root, LONG)?.exchange(b"one");
                let other = scope.spawn(join);
                let records = TcpBootstrap::listen(listener, 2, LONG).unwrap().exchange(b"zero").unwrap();
                assert_eq!(other.join().expect("no panic").unwrap(), records, "{sent} bytes");
            });
            drop(strangers);
        }
    }

    #[test]
    fn a_greeting_in_single_bytes_is_answered() {
        let (listener, root) = listener();
        let first = thread::spawn(move || TcpBootstrap::listen(listener, 2, LONG)?.exchange(b"zero"));
        let mut stream = TcpStream::connect(root).expect("it listens");
        stream.set_nodelay(true).expect("a TCP socket");
        for byte in greeting(2, 1, 2) {
            stream.write_all(&[byte]).expect("it reads");
        }
        let mut answer = [0; 8];
        stream.read_exact(&mut answer).expect("an answer");
        assert_eq!(&answer, b"hbboot\0\x02");
        // The empty record that shows that all have connected, and the first exchange.
        stream.write_all(&[encode(b""), encode(b"one")].concat()).expect("it reads");
        assert_eq!(first.join().expect("no panic").unwrap(), [&b"zero"[..], b"one"]);
    }

    #[test]
    fn a_time_limit_beyond_the_clock_is_no_panic() {
        let (listener, root) = listener();
        thread::scope(|scope| {
            let other = scope.spawn(move || TcpBootstrap::join(PeerId(1), 2, root, Duration::MAX));
            let first = TcpBootstrap::listen(listener, 2, Duration::MAX).unwrap();
            let other = other.join().expect("no panic").unwrap();
            let one = scope.spawn(move || other.exchange(b"one").unwrap());
            assert_eq!(first.exchange(b"zero").unwrap(), one.join().expect("no panic"));
        });
    }

    #[test]
    fn a_record_that_is_too_long_is_an_error() {
        let (listener, _) = listener();
        let alone = TcpBootstrap::listen(listener, 1, SHORT).unwrap();
        let error = alone.exchange(&vec![0; MAX_RECORD + 1]).unwrap_err().to_string();
        assert!(error.contains("a record has 1048577 bytes"), "{error}");
    }
}
