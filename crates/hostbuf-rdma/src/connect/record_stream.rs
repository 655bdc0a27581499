//! Records over a TCP connection.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// The maximum number of bytes of a record.
pub(crate) const MAX_RECORD: usize = 1 << 20;

/// A TCP connection on which each call has a deadline for all of its bytes, so that a peer that
/// sends single bytes cannot extend it.
pub(crate) struct RecordStream(TcpStream);

impl RecordStream {
    /// Prepares a connection.
    ///
    /// # Errors
    /// As `setsockopt(2)`.
    pub(crate) fn new(stream: TcpStream) -> io::Result<RecordStream> {
        stream.set_nonblocking(false)?;
        stream.set_nodelay(true)?;
        Ok(RecordStream(stream))
    }

    /// Reads `bytes.len()` bytes.
    ///
    /// # Errors
    /// `TimedOut` at `deadline`; `UnexpectedEof` if the peer has ended the connection; otherwise as
    /// `recv(2)`.
    pub(crate) fn read(&mut self, mut bytes: &mut [u8], deadline: Instant) -> io::Result<()> {
        while !bytes.is_empty() {
            self.0.set_read_timeout(Some(time_left(deadline)?))?;
            match self.0.read(bytes) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(count) => bytes = &mut bytes[count..],
                Err(error) if is_temporary(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Writes `bytes`.
    ///
    /// # Errors
    /// `TimedOut` at `deadline`; otherwise as `send(2)`.
    pub(crate) fn write(&mut self, mut bytes: &[u8], deadline: Instant) -> io::Result<()> {
        while !bytes.is_empty() {
            self.0.set_write_timeout(Some(time_left(deadline)?))?;
            match self.0.write(bytes) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(count) => bytes = &bytes[count..],
                Err(error) if is_temporary(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Reads a record.
    ///
    /// # Errors
    /// `InvalidData` for a length above [`MAX_RECORD`]; otherwise as [`read`](RecordStream::read).
    pub(crate) fn read_record(&mut self, deadline: Instant) -> io::Result<Vec<u8>> {
        decode(|bytes| self.read(bytes, deadline))
    }
}

/// Decodes a record from the bytes that `read` returns.
///
/// # Errors
/// `InvalidData` for a length above [`MAX_RECORD`]; otherwise as `read`.
pub(crate) fn decode(mut read: impl FnMut(&mut [u8]) -> io::Result<()>) -> io::Result<Vec<u8>> {
    let mut length = [0; 4];
    read(&mut length)?;
    let length = u32::from_le_bytes(length) as usize;
    if length > MAX_RECORD {
        let why = format!("it sent a record of {length} bytes, and at most {MAX_RECORD} are possible");
        return Err(io::Error::new(ErrorKind::InvalidData, why));
    }
    let mut record = vec![0; length];
    read(&mut record)?;
    Ok(record)
}

/// Encodes a record with its length in front.
pub(crate) fn encode(record: &[u8]) -> Vec<u8> {
    [&(record.len() as u32).to_le_bytes(), record].concat()
}

/// Returns the time until `deadline`.
///
/// # Errors
/// `TimedOut` if it has passed.
fn time_left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(ErrorKind::TimedOut.into()) } else { Ok(left) }
}

/// Returns whether the call is to be repeated, until the deadline: a socket reports the end of its
/// own time limit as `WouldBlock`.
fn is_temporary(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use std::sync::mpsc;
    use std::thread;

    fn pair() -> (RecordStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let other = TcpStream::connect(listener.local_addr().expect("its address")).expect("it listens");
        (RecordStream::new(listener.accept().expect("it has connected").0).expect("a connection"), other)
    }

    fn in_time() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    #[test]
    fn a_peer_that_sends_single_bytes_does_not_extend_the_deadline() {
        let (mut stream, mut other) = pair();
        let (done, is_done) = mpsc::channel::<()>();
        thread::scope(|scope| {
            scope.spawn(move || {
                other.write_all(&encode(&[0; 1000])[..4]).expect("it reads");
                // A byte for each interval in which the reader has not returned.
                while is_done.recv_timeout(Duration::from_millis(2)) == Err(mpsc::RecvTimeoutError::Timeout) {
                    if other.write_all(&[0]).is_err() {
                        return;
                    }
                }
            });
            let deadline = Instant::now() + Duration::from_millis(100);
            let error = stream.read_record(deadline).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::TimedOut);
            drop(done);
        });
    }

    #[test]
    fn a_peer_that_reads_nothing_is_an_error_at_the_deadline() {
        let (mut stream, _other) = pair();
        let deadline = Instant::now() + Duration::from_millis(50);
        // More than the buffers of both sockets hold.
        let error = stream.write(&vec![0; 64 << 20], deadline).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
    }

    #[test]
    fn other_bytes_than_a_record_are_an_error() {
        let (mut stream, mut other) = pair();
        other.write_all(b"GET / HTTP/1.1\r\n").expect("it reads");
        let error = stream.read_record(in_time()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidData);
        assert!(error.to_string().contains("542393671 bytes"), "{error}");
    }

    #[test]
    fn a_record_that_ends_early_is_an_error() {
        let (mut stream, mut other) = pair();
        other.write_all(&encode(b"record")[..7]).expect("it reads");
        drop(other);
        let error = stream.read_record(in_time()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
    }
}
