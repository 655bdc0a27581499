//! A connection for requests by HTTP/1.1.

use std::io;
use std::sync::Arc;

use bytes::{Buf, BufMut, BytesMut};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use super::low_water_socket::LowWaterSocket;
use super::response_head::ResponseHead;
use super::tls_session::TlsSession;

/// The most bytes of a head, and of a line of a chunked body.
const HEAD: usize = 64 << 10;
/// The bytes that are received at a time while a head is missing.
const PART_OF_HEAD: usize = 8 << 10;

/// A connection for one request after the other. It is of no use after an error.
pub(super) struct HttpConnection {
    socket: LowWaterSocket,
    tls: Option<Box<TlsSession>>,
    /// Received bytes behind a head or a line.
    unread: BytesMut,
    /// True if bytes of the current answer have arrived.
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

    /// Returns whether the server has neither closed the connection nor sent anything.
    pub(super) fn is_quiet(&mut self) -> bool {
        if !self.unread.is_empty() {
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

    /// Ends an answer.
    pub(super) fn reset(&mut self) -> io::Result<()> {
        self.socket.reset()
    }

    /// Returns whether bytes of the answer to the last request have arrived.
    pub(super) fn has_received(&self) -> bool {
        self.has_received
    }

    /// Sends a request, and receives the head of the answer.
    pub(super) async fn exchange(&mut self, request: &[u8]) -> io::Result<ResponseHead> {
        self.has_received = false;
        match &mut self.tls {
            Some(tls) => tls.write_all(&mut self.socket, request).await?,
            None => self.socket.tcp.write_all(request).await?,
        }
        loop {
            let found = ResponseHead::parse(&self.unread).map_err(io::Error::other)?;
            if let Some((head, length)) = found {
                self.unread.advance(length);
                // Another head follows one that only informs.
                if !head.status.is_informational() {
                    return Ok(head);
                }
            } else {
                self.receive().await?;
                self.has_received = true;
            }
        }
    }

    /// Reads bytes of a body into `into`, which has room. The server sends at least `expected`
    /// bytes. Returns the number of bytes: 0 at the end of the connection.
    pub(super) async fn read(&mut self, into: &mut impl BufMut, expected: u64) -> io::Result<usize> {
        if !self.unread.is_empty() {
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

    /// Reads a line of a chunked body, without its end.
    pub(super) async fn read_line(&mut self) -> io::Result<BytesMut> {
        loop {
            if let Some(end) = self.unread.iter().position(|&byte| byte == b'\n') {
                let mut line = self.unread.split_to(end + 1);
                line.truncate(if line.ends_with(b"\r\n") { end - 1 } else { end });
                return Ok(line);
            }
            self.receive().await?;
        }
    }

    /// Receives bytes behind those that are not read yet.
    async fn receive(&mut self) -> io::Result<()> {
        if self.unread.len() >= HEAD {
            return Err(io::Error::other(format!("invalid HTTP: a head of more than {HEAD} bytes")));
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

/// Makes the error of a connection that ends within an answer.
pub(super) fn end_of_connection() -> io::Error {
    io::Error::new(
        io::ErrorKind::UnexpectedEof,
        "the server has closed the connection before the end of its answer",
    )
}
