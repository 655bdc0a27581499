//! TLS over a TCP connection.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use bytes::{Buf, BufMut, BytesMut};
use rustls::ClientConfig;
use rustls::client::UnbufferedClientConnection;
use rustls::pki_types::ServerName;
use rustls::unbuffered::{
    ConnectionState, EncodeError, EncryptError, InsufficientSizeError, UnbufferedStatus,
};
use tokio::io::AsyncWriteExt;

use super::low_water_socket::LowWaterSocket;

/// The bytes that are received at a time: several records, which stay in the processor's cache.
const RECEIVED: usize = 128 << 10;
/// The most reads of an idle session, whose server may send tickets.
const MOST_IDLE_READS: usize = 8;

/// The TLS of a connection. Records are decrypted where they were received.
pub(super) struct TlsSession {
    connection: UnbufferedClientConnection,
    received: Box<[u8]>,
    /// The place of the records that are not decrypted yet.
    records: Range<usize>,
    /// The records to send.
    outgoing: Vec<u8>,
    /// Decrypted bytes for which there was no room.
    decrypted: BytesMut,
    /// True after the alert `close_notify`, which rustls reports only once.
    is_closed: bool,
    /// The failure of the record after the last bytes that were read.
    failure: Option<io::Error>,
}

/// The state after all complete records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SessionState {
    Handshake,
    Open,
    /// The server has ended it.
    Closed,
}

impl TlsSession {
    /// Makes a session by a handshake.
    pub(super) async fn new(
        socket: &mut LowWaterSocket,
        settings: Arc<ClientConfig>,
        server: ServerName<'static>,
    ) -> io::Result<TlsSession> {
        let connection = UnbufferedClientConnection::new(settings, server).map_err(invalid)?;
        let received = vec![0; RECEIVED].into_boxed_slice();
        let (outgoing, decrypted) = (Vec::new(), BytesMut::new());
        let (records, is_closed, failure) = (0..0, false, None);
        let mut session =
            TlsSession { connection, received, records, outgoing, decrypted, is_closed, failure };
        loop {
            let mut unrequested = BytesMut::new();
            let state = session.process(&mut unrequested);
            if state.is_err() {
                // Encodes the alert, which states the reason to the server.
                let _ = session.process(&mut BytesMut::new());
            }
            let flushed = session.flush(socket).await;
            let state = state?;
            flushed?;
            if !unrequested.is_empty() {
                return Err(unrequested_bytes());
            }
            match state {
                SessionState::Open => return Ok(session),
                SessionState::Handshake if session.receive(socket, 1).await? > 0 => {}
                _ => return Err(cut()),
            }
        }
    }

    /// Reads bytes into `into`, which has room. The server has at least `expected` bytes to send.
    /// Returns the number of bytes: 0 if the server has ended the session.
    pub(super) async fn read(
        &mut self,
        socket: &mut LowWaterSocket,
        into: &mut impl BufMut,
        expected: u64,
    ) -> io::Result<usize> {
        if !self.decrypted.is_empty() {
            let bytes = self.decrypted.len().min(into.remaining_mut());
            into.put_slice(&self.decrypted[..bytes]);
            self.decrypted.advance(bytes);
            return Ok(bytes);
        }
        if let Some(failure) = self.failure.take() {
            return Err(failure);
        }
        let room = into.remaining_mut();
        loop {
            let state = self.process(into);
            let bytes = room - into.remaining_mut();
            if bytes > 0 {
                // They count, also if the next record is invalid.
                self.failure = state.err();
                return Ok(bytes);
            }
            let state = state?;
            self.flush(socket).await?;
            if state == SessionState::Closed {
                return Ok(0);
            }
            if self.receive(socket, expected).await? == 0 {
                return Err(cut());
            }
        }
    }

    /// Sends a request.
    pub(super) async fn write_all(&mut self, socket: &mut LowWaterSocket, bytes: &[u8]) -> io::Result<()> {
        if let Some(failure) = self.failure.take() {
            return Err(failure);
        }
        let mut unrequested = BytesMut::new();
        let state = self.process(&mut unrequested)?;
        if !unrequested.is_empty() || !self.decrypted.is_empty() {
            return Err(unrequested_bytes());
        }
        if state != SessionState::Open {
            return Err(cut());
        }
        let TlsSession { connection, received, records, outgoing, .. } = self;
        let UnbufferedStatus { discard, state, .. } =
            connection.process_tls_records(&mut received[records.clone()]);
        // All complete records were processed above.
        let ConnectionState::WriteTraffic(mut traffic) = state.map_err(invalid)? else { return Err(cut()) };
        append(outgoing, |room| match traffic.encrypt(bytes, room) {
            Err(EncryptError::InsufficientSize(error)) => Err(Ok(error)),
            result => result.map_err(|error| Err(invalid(error))),
        })?;
        records.start += discard;
        self.flush(socket).await
    }

    /// Returns whether the server has sent no bytes since the last read, and has not ended the
    /// session. It may have sent records of the session itself, such as tickets.
    pub(super) fn is_idle(&mut self, socket: &LowWaterSocket) -> bool {
        for _ in 0..MOST_IDLE_READS {
            let mut unrequested = BytesMut::new();
            let state = self.process(&mut unrequested);
            let is_open = self.failure.is_none() && matches!(state, Ok(SessionState::Open));
            if !is_open || !unrequested.is_empty() {
                return false;
            }
            self.make_room();
            match socket.tcp.try_read(&mut self.received[self.records.end..]) {
                Ok(bytes) if bytes > 0 => self.records.end += bytes,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    // The beginning of a record may be that of bytes that nobody has requested.
                    return self.records.is_empty() && self.decrypted.is_empty() && self.outgoing.is_empty();
                }
                _ => return false,
            }
        }
        false
    }

    /// Decrypts the records that were received, until `into` is full.
    fn process(&mut self, into: &mut impl BufMut) -> io::Result<SessionState> {
        loop {
            let records = &mut self.received[self.records.clone()];
            let UnbufferedStatus { mut discard, state, .. } = self.connection.process_tls_records(records);
            let mut reached = None;
            match state.map_err(invalid)? {
                ConnectionState::ReadTraffic(mut traffic) => {
                    while let Some(record) = traffic.next_record() {
                        let record = record.map_err(invalid)?;
                        let fits = record.payload.len().min(into.remaining_mut());
                        into.put_slice(&record.payload[..fits]);
                        self.decrypted.extend_from_slice(&record.payload[fits..]);
                        discard += record.discard;
                    }
                    reached = (!into.has_remaining_mut()).then_some(SessionState::Open);
                }
                ConnectionState::EncodeTlsData(mut data) => {
                    append(&mut self.outgoing, |room| match data.encode(room) {
                        Err(EncodeError::InsufficientSize(error)) => Err(Ok(error)),
                        result => result.map_err(|error| Err(invalid(error))),
                    })?;
                }
                // The caller sends it.
                ConnectionState::TransmitTlsData(data) => data.done(),
                ConnectionState::WriteTraffic(_) if !self.is_closed => reached = Some(SessionState::Open),
                ConnectionState::BlockedHandshake if !self.is_closed => {
                    reached = Some(SessionState::Handshake);
                }
                _ => {
                    self.is_closed = true;
                    reached = Some(SessionState::Closed);
                }
            }
            self.records.start += discard;
            if let Some(state) = reached {
                return Ok(state);
            }
        }
    }

    async fn flush(&mut self, socket: &mut LowWaterSocket) -> io::Result<()> {
        if !self.outgoing.is_empty() {
            socket.tcp.write_all(&self.outgoing).await?;
            self.outgoing.clear();
        }
        Ok(())
    }

    /// Receives records. Returns the number of bytes.
    async fn receive(&mut self, socket: &mut LowWaterSocket, expected: u64) -> io::Result<usize> {
        self.make_room();
        // The bytes of a record that is not complete have arrived.
        let expected = expected.saturating_sub(self.records.len() as u64);
        let bytes = socket.read(&mut &mut self.received[self.records.end..], expected).await?;
        self.records.end += bytes;
        Ok(bytes)
    }

    /// Moves the record that is not complete to the beginning. It has at most 16 KiB.
    fn make_room(&mut self) {
        if self.records.start > 0 {
            self.received.copy_within(self.records.clone(), 0);
            self.records = 0..self.records.len();
        }
    }
}

/// Appends what `encode` writes, with the room that it asks for.
fn append(
    to: &mut Vec<u8>,
    mut encode: impl FnMut(&mut [u8]) -> Result<usize, Result<InsufficientSizeError, io::Error>>,
) -> io::Result<()> {
    let begin = to.len();
    loop {
        match encode(&mut to[begin..]) {
            Ok(bytes) => {
                to.truncate(begin + bytes);
                return Ok(());
            }
            Err(Ok(InsufficientSizeError { required_size })) => to.resize(begin + required_size, 0),
            Err(Err(error)) => return Err(error),
        }
    }
}

fn invalid(error: impl std::error::Error + Send + Sync + 'static) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

fn cut() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "the server has closed the connection")
}

/// Makes the error of bytes that belong to no request.
fn unrequested_bytes() -> io::Error {
    io::Error::other("the server has sent bytes that belong to no request")
}
