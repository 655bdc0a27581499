//! A response whose body is received in the caller's memory.

use std::io;
use std::sync::Arc;

use bytes::BufMut;

use super::connection_pool::ConnectionPool;
use super::http_connection::{HEAD_BYTES, HttpConnection, end_of_connection, invalid};
use super::remote_error::RemoteProblem;
use super::request_problem::chain;
use super::response_head::{BodyFraming, ResponseHead};

/// A response. Its body is received by the reads.
pub(super) struct GetResponse {
    pub(super) head: ResponseHead,
    pool: Arc<ConnectionPool>,
    origin: String,
    /// `None` after the end of the body.
    connection: Option<HttpConnection>,
    chunk: ChunkState,
}

/// The next part of a chunked body (RFC 9112, section 7.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ChunkState {
    Size,
    Data(u64),
    EndOfData,
    /// The bytes of the trailers so far.
    Trailers(usize),
}

impl GetResponse {
    pub(super) fn new(
        pool: Arc<ConnectionPool>,
        origin: String,
        head: ResponseHead,
        connection: HttpConnection,
    ) -> GetResponse {
        let connection = Some(connection);
        let mut response = GetResponse { head, pool, origin, connection, chunk: ChunkState::Size };
        if response.head.framing == BodyFraming::Length(0) {
            response.release();
        }
        response
    }

    /// Returns the length of the body, if the server has stated it, without the bytes that were
    /// read.
    pub(super) fn content_length(&self) -> Option<u64> {
        match self.head.framing {
            BodyFraming::Length(bytes) => Some(bytes),
            _ => None,
        }
    }

    /// Reads bytes of the body into `into`, which has room. Returns their number: 0 at the end.
    pub(super) async fn read(&mut self, into: &mut impl BufMut) -> Result<usize, RemoteProblem> {
        self.read_body(into).await.map_err(|error| {
            self.connection = None;
            cut(error)
        })
    }

    async fn read_body(&mut self, into: &mut impl BufMut) -> io::Result<usize> {
        let Some(connection) = &mut self.connection else { return Ok(0) };
        match &mut self.head.framing {
            BodyFraming::Length(left) => {
                let bytes = read_some(connection, into, *left).await?;
                *left -= bytes as u64;
                if *left == 0 {
                    self.release();
                }
                Ok(bytes)
            }
            BodyFraming::Chunked => self.read_chunk(into).await,
            BodyFraming::UntilClose => {
                let bytes = connection.read(into, 1).await?;
                if bytes == 0 {
                    self.connection = None;
                }
                Ok(bytes)
            }
        }
    }

    async fn read_chunk(&mut self, into: &mut impl BufMut) -> io::Result<usize> {
        loop {
            let Some(connection) = &mut self.connection else { return Ok(0) };
            match self.chunk {
                ChunkState::Data(left) => {
                    let bytes = read_some(connection, into, left).await?;
                    let left = left - bytes as u64;
                    self.chunk = if left == 0 { ChunkState::EndOfData } else { ChunkState::Data(left) };
                    return Ok(bytes);
                }
                ChunkState::EndOfData if connection.read_line().await?.is_empty() => {
                    self.chunk = ChunkState::Size;
                }
                ChunkState::EndOfData => return Err(invalid("a chunk does not end with CRLF")),
                ChunkState::Size => {
                    let line = connection.read_line().await?;
                    self.chunk = match chunk_size(&line) {
                        Some(0) => ChunkState::Trailers(0),
                        Some(bytes) => ChunkState::Data(bytes),
                        None => return Err(invalid("the size of a chunk is malformed")),
                    };
                }
                ChunkState::Trailers(bytes) => match connection.read_line().await?.len() {
                    0 => self.release(),
                    _ if bytes >= HEAD_BYTES => return Err(invalid("too many trailers")),
                    more => self.chunk = ChunkState::Trailers(bytes + more),
                },
            }
        }
    }

    /// Ends the body. Keeps the connection if nothing follows the response.
    fn release(&mut self) {
        let connection = self.connection.take();
        let may_persist = |connection: &HttpConnection| self.head.is_persistent && !connection.has_unread();
        if let Some(connection) = connection.filter(may_persist) {
            self.pool.keep(self.origin.clone(), connection);
        }
    }
}

pub(super) fn cut(error: io::Error) -> RemoteProblem {
    RemoteProblem::Cut { received: 0, why: chain(&error) }
}

/// Reads at least one byte, and at most `most`.
async fn read_some(connection: &mut HttpConnection, into: &mut impl BufMut, most: u64) -> io::Result<usize> {
    let most = usize::try_from(most).unwrap_or(usize::MAX);
    match connection.read(&mut into.limit(most), most as u64).await? {
        0 => Err(end_of_connection()),
        bytes => Ok(bytes),
    }
}

/// Parses the line before the bytes of a chunk: their number, and extensions, which are ignored.
fn chunk_size(line: &[u8]) -> Option<u64> {
    let size = line.split(|&byte| byte == b';').next()?;
    let blanks = size.iter().rev().take_while(|&&byte| matches!(byte, b' ' | b'\t')).count();
    let digits = &size[..size.len() - blanks];
    // The parser of numbers also accepts a sign.
    if !digits.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    u64::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}
