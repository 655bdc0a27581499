//! The transport of a test server: TCP, or TLS over TCP.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use rustls::{ServerConfig, ServerConnection, Stream};

/// The state of the connection after an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AfterAnswer {
    Keep,
    /// Closed: with TLS without a notice, as a third party can do it.
    Close,
    /// Closed with the notice of TLS.
    CloseNotify,
    /// Open and silent after the notice of TLS.
    StallAfterNotify,
    /// Open after a record of TLS that nobody has requested. The last bytes of it are missing.
    UnrequestedRecord {
        missing: usize,
    },
    /// Closed after a record of TLS that was changed on its way.
    ChangedRecord,
    /// Closed by a reset.
    Reset,
    /// Open and silent until the server ends.
    Stall,
}

/// A connection of a test server.
pub(super) struct TestTransport {
    tcp: TcpStream,
    tls: Option<ServerConnection>,
}

impl TestTransport {
    pub(super) fn new(tcp: TcpStream, settings: Option<Arc<ServerConfig>>) -> TestTransport {
        let tls = settings.map(|settings| ServerConnection::new(settings).expect("valid settings"));
        TestTransport { tcp, tls }
    }

    /// Sends an answer with all records of TLS at once, so that the client receives them together.
    pub(super) fn send(&mut self, bytes: &[u8], after: AfterAnswer) -> io::Result<()> {
        let Some(tls) = &mut self.tls else { return self.tcp.write_all(bytes) };
        tls.set_buffer_limit(None);
        let mut records = Vec::new();
        tls.writer().write_all(bytes)?;
        match after {
            AfterAnswer::CloseNotify | AfterAnswer::StallAfterNotify => tls.send_close_notify(),
            AfterAnswer::ChangedRecord | AfterAnswer::UnrequestedRecord { .. } => {
                tls.writer().write_all(&[0; 100])?;
            }
            _ => {}
        }
        while tls.wants_write() {
            tls.write_tls(&mut records)?;
        }
        if let (AfterAnswer::ChangedRecord, Some(last)) = (after, records.last_mut()) {
            *last ^= 1;
        }
        if let AfterAnswer::UnrequestedRecord { missing } = after {
            records.truncate(records.len() - missing);
        }
        self.tcp.write_all(&records)
    }
}

impl Read for TestTransport {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match &mut self.tls {
            Some(tls) => Stream::new(tls, &mut self.tcp).read(into),
            None => self.tcp.read(into),
        }
    }
}
