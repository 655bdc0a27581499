//! Connections whose bytes go to their place without a buffer in between.

use std::io;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::BufMut;
use hostbuf_os::poison::IgnorePoison;
use hyper_util::client::legacy::connect::HttpConnector;
use reqwest::header::{HOST, HeaderMap};
use reqwest::{Request, Url};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tower_service::Service;

use super::http_client::{chain, is_tls};
use super::http_connection::{HttpConnection, end_of_connection};
use super::remote_error::RemoteProblem;
use super::response_head::{BodyFraming, ResponseHead};

/// The time after which an unused connection is not used again.
const IDLE: Duration = Duration::from_secs(90);
const KEEPALIVE: Duration = Duration::from_secs(15);

/// Connections of one runtime, whose bytes go to their place without a buffer in between. It
/// follows no redirects, and knows no proxies.
pub(super) struct DirectClient {
    tls: Arc<ClientConfig>,
    headers: HeaderMap,
    connector: HttpConnector,
    idle: Mutex<Vec<IdleConnection>>,
}

struct IdleConnection {
    origin: String,
    since: Instant,
    connection: HttpConnection,
}

impl DirectClient {
    /// Makes a client that sends `headers` with each request.
    pub(super) fn new(tls: Arc<ClientConfig>, headers: HeaderMap, timeout: Duration) -> DirectClient {
        let mut connector = HttpConnector::new();
        connector.enforce_http(false);
        connector.set_nodelay(true);
        connector.set_keepalive(Some(KEEPALIVE));
        connector.set_connect_timeout(Some(timeout));
        DirectClient { tls, headers, connector, idle: Mutex::default() }
    }

    /// Sends a request for GET, and receives the head of the answer.
    pub(super) async fn get(self: &Arc<Self>, request: &Request) -> Result<DirectResponse, RemoteProblem> {
        let url = request.url();
        let origin = origin(url);
        let text = self.encode(request);
        while let Some(mut connection) = self.take_idle(&origin) {
            match connection.exchange(&text).await {
                // The server has closed it at the same time.
                Err(_) if !connection.has_received() => {}
                result => return Ok(self.response(result.map_err(cut)?, connection, origin)),
            }
        }
        let mut connection = self.connect(url).await?;
        let head = connection.exchange(&text).await.map_err(cut)?;
        Ok(self.response(head, connection, origin))
    }

    fn response(
        self: &Arc<Self>,
        head: ResponseHead,
        connection: HttpConnection,
        origin: String,
    ) -> DirectResponse {
        let (client, chunk) = (self.clone(), ChunkState::Size);
        let mut response = DirectResponse { head, client, origin, connection: Some(connection), chunk };
        if response.head.framing == BodyFraming::Length(0) {
            response.release();
        }
        response
    }

    fn encode(&self, request: &Request) -> Vec<u8> {
        let url = request.url();
        let query = url.query().map_or(String::new(), |query| format!("?{query}"));
        let mut text = format!("GET {}{query} HTTP/1.1\r\n", url.path()).into_bytes();
        let own = request.headers();
        let others = self.headers.iter().filter(|(name, _)| !own.contains_key(*name));
        let headers: Vec<_> = own.iter().chain(others).collect();
        if !headers.iter().any(|(name, _)| *name == HOST) {
            let port = url.port().map_or(String::new(), |port| format!(":{port}"));
            text.extend(format!("host: {}{port}\r\n", url.host_str().unwrap_or_default()).into_bytes());
        }
        for (name, value) in headers {
            text.extend([name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"].concat());
        }
        text.extend(b"\r\n");
        text
    }

    /// Returns a connection that the server has not closed.
    fn take_idle(&self, origin: &str) -> Option<HttpConnection> {
        let mut idle = self.idle.lock().ignore_poison();
        idle.retain(|unused| unused.since.elapsed() < IDLE);
        while let Some(index) = idle.iter().rposition(|unused| unused.origin == origin) {
            let mut connection = idle.swap_remove(index).connection;
            if connection.is_quiet() {
                return Some(connection);
            }
        }
        None
    }

    async fn connect(&self, url: &Url) -> Result<HttpConnection, RemoteProblem> {
        let failed = |why: String| RemoteProblem::Connect { why };
        let uri = url.as_str().parse().ok();
        let uri = uri.ok_or_else(|| failed("its address is none of HTTP".to_owned()))?;
        let connected = self.connector.clone().call(uri).await;
        let tcp = connected.map_err(|error| failed(chain(&error)))?.into_inner();
        let connection = HttpConnection::new(tcp);
        if url.scheme() != "https" {
            return Ok(connection);
        }
        let host = url.host_str().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
        let name = ServerName::try_from(host.to_owned()).map_err(|error| failed(error.to_string()))?;
        connection.start_tls(self.tls.clone(), name).await.map_err(|error| {
            let why = chain(&error);
            if is_tls(&error) { RemoteProblem::Tls { why } } else { failed(why) }
        })
    }
}

fn origin(url: &Url) -> String {
    let (host, port) = (url.host_str().unwrap_or_default(), url.port_or_known_default().unwrap_or_default());
    format!("{}://{host}:{port}", url.scheme())
}

fn cut(error: io::Error) -> RemoteProblem {
    RemoteProblem::Cut { received: 0, why: chain(&error) }
}

/// An answer, whose body is received by and by.
pub(super) struct DirectResponse {
    pub(super) head: ResponseHead,
    client: Arc<DirectClient>,
    origin: String,
    /// `None` behind the end of the body.
    connection: Option<HttpConnection>,
    chunk: ChunkState,
}

/// The next part of a chunked body (RFC 9112, section 7.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ChunkState {
    Size,
    Data(u64),
    EndOfData,
    Trailers,
}

impl DirectResponse {
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
                ChunkState::EndOfData => return Err(io::Error::other("invalid HTTP: the end of a chunk")),
                ChunkState::Size => {
                    let line = connection.read_line().await?;
                    self.chunk = match chunk_size(&line) {
                        Some(0) => ChunkState::Trailers,
                        Some(bytes) => ChunkState::Data(bytes),
                        None => return Err(io::Error::other("invalid HTTP: the length of a chunk")),
                    };
                }
                ChunkState::Trailers => {
                    if connection.read_line().await?.is_empty() {
                        self.release();
                    }
                }
            }
        }
    }

    /// Keeps the connection for another request.
    fn release(&mut self) {
        let Some(mut connection) = self.connection.take().filter(|_| self.head.keeps) else { return };
        if connection.reset().is_err() {
            return;
        }
        let unused = IdleConnection { origin: self.origin.clone(), since: Instant::now(), connection };
        self.client.idle.lock().ignore_poison().push(unused);
    }
}

/// Reads at least one byte, and at most `most`.
async fn read_some(connection: &mut HttpConnection, into: &mut impl BufMut, most: u64) -> io::Result<usize> {
    let most = usize::try_from(most).unwrap_or(usize::MAX);
    match connection.read(&mut into.limit(most), most as u64).await? {
        0 => Err(end_of_connection()),
        bytes => Ok(bytes),
    }
}

/// Parses the line in front of a chunk.
fn chunk_size(line: &[u8]) -> Option<u64> {
    let digits = line.split(|&byte| byte == b';').next()?.trim_ascii();
    let is_valid = !digits.is_empty() && digits.iter().all(u8::is_ascii_hexdigit);
    u64::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok().filter(|_| is_valid)
}
