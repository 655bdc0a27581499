//! A connection for requests by HTTP/1.1.

use std::io;
use std::sync::Arc;

use bytes::{Buf, BufMut, BytesMut};
use reqwest::StatusCode;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use super::low_water_socket::LowWaterSocket;
use super::response_head::ResponseHead;
use super::tls_session::TlsSession;

/// The most bytes of the heads of one response, of a line of a chunked body, and of its trailers.
pub(super) const HEAD_BYTES: usize = 64 << 10;
/// The bytes that are received at a time while a head is missing.
const PART_OF_HEAD: usize = 8 << 10;

/// A connection for one request after the other. It must be dropped after an error, and after a
/// response that was not received to its end.
pub(super) struct HttpConnection {
    socket: LowWaterSocket,
    tls: Option<Box<TlsSession>>,
    /// The received bytes after a head or a line.
    unread: BytesMut,
    /// True if bytes of the current response have arrived.
    has_received: bool,
}

impl HttpConnection {
    pub(super) fn new(tcp: TcpStream) -> HttpConnection {
        HttpConnection {
            socket: LowWaterSocket::new(tcp),
            tls: None,
            unread: BytesMut::new(),
            has_received: false,
        }
    }

    /// Starts TLS.
    pub(super) async fn start_tls(
        mut self,
        settings: Arc<ClientConfig>,
        server: ServerName<'static>,
    ) -> io::Result<HttpConnection> {
        let session = TlsSession::new(&mut self.socket, settings, server).await?;
        Ok(HttpConnection { tls: Some(Box::new(session)), ..self })
    }

    /// Returns whether the server has neither closed the idle connection nor sent anything.
    pub(super) fn is_reusable(&mut self) -> bool {
        if self.has_unread() {
            return false;
        }
        match &mut self.tls {
            Some(tls) => tls.is_idle(&self.socket),
            None => {
                let read = self.socket.tcp.try_read(&mut [0]);
                matches!(read, Err(error) if error.kind() == io::ErrorKind::WouldBlock)
            }
        }
    }

    /// Returns whether bytes were received that no response has claimed.
    pub(super) fn has_unread(&self) -> bool {
        !self.unread.is_empty()
    }

    /// Prepares the connection for the next request.
    pub(super) fn reset(&mut self) -> io::Result<()> {
        self.socket.reset()
    }

    /// Returns whether bytes of the response to the last request have arrived.
    pub(super) fn has_received(&self) -> bool {
        self.has_received
    }

    /// Sends a request, and receives the head of the response.
    pub(super) async fn exchange(&mut self, request: &[u8]) -> io::Result<ResponseHead> {
        self.has_received = false;
        match &mut self.tls {
            Some(tls) => tls.write_all(&mut self.socket, request).await?,
            None => self.socket.tcp.write_all(request).await?,
        }
        let mut informational = 0;
        loop {
            let found = ResponseHead::parse(&self.unread).map_err(io::Error::other)?;
            let Some((head, length)) = found else {
                self.receive().await?;
                self.has_received = true;
                continue;
            };
            self.unread.advance(length);
            if !head.status.is_informational() {
                return Ok(head);
            }
            // The final response follows an informational one (RFC 9110, section 15.2).
            informational += length;
            if head.status == StatusCode::SWITCHING_PROTOCOLS {
                return Err(invalid("it switches to a protocol that was not requested"));
            }
            if informational > HEAD_BYTES {
                return Err(invalid("too many informational responses"));
            }
        }
    }

    /// Reads bytes of a body into `into`, which has room. The server has at least `expected` bytes
    /// to send. Returns the number of bytes: 0 at the end of the connection.
    pub(super) async fn read(&mut self, into: &mut impl BufMut, expected: u64) -> io::Result<usize> {
        if self.has_unread() {
            let bytes = self.unread.len().min(into.remaining_mut());
            into.put_slice(&self.unread[..bytes]);
            self.unread.advance(bytes);
            return Ok(bytes);
        }
        match &mut self.tls {
            Some(tls) => tls.read(&mut self.socket, into, expected).await,
            None => self.socket.read(into, expected).await,
        }
    }

    /// Reads a line of a chunked body, without the CRLF at its end.
    pub(super) async fn read_line(&mut self) -> io::Result<BytesMut> {
        loop {
            if let Some(end) = self.unread.iter().position(|&byte| byte == b'\n') {
                let mut line = self.unread.split_to(end + 1);
                line.truncate(end);
                // A parser that takes CR or LF alone for an end finds other lines.
                if line.iter().position(|&byte| byte == b'\r').is_none_or(|at| at + 1 != end) {
                    return Err(invalid("a line does not end with CRLF"));
                }
                line.truncate(end - 1);
                return Ok(line);
            }
            // The server may hold the line back until the chunk before it is acknowledged.
            self.socket.acknowledge();
            self.receive().await?;
        }
    }

    /// Receives bytes after those that are not read yet.
    async fn receive(&mut self) -> io::Result<()> {
        if self.unread.len() >= HEAD_BYTES {
            return Err(invalid(&format!("a head or a line of more than {HEAD_BYTES} bytes")));
        }
        self.unread.reserve(PART_OF_HEAD);
        let into = &mut (&mut self.unread).limit(PART_OF_HEAD);
        let bytes = match &mut self.tls {
            Some(tls) => tls.read(&mut self.socket, into, 1).await?,
            None => self.socket.read(into, 1).await?,
        };
        if bytes == 0 {
            return Err(end_of_connection());
        }
        Ok(())
    }
}

/// Makes the error of a response that breaks the rules of HTTP.
pub(super) fn invalid(what: &str) -> io::Error {
    io::Error::other(format!("invalid HTTP: {what}"))
}

/// Makes the error of a connection that ends within a response.
pub(super) fn end_of_connection() -> io::Error {
    io::Error::new(
        io::ErrorKind::UnexpectedEof,
        "the server has closed the connection before the end of its response",
    )
}
