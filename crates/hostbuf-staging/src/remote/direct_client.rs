//! Connections whose bytes go to their place without a buffer in between.

use std::error::Error;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use hostbuf_os::poison::IgnorePoison;
use hyper_util::client::legacy::connect::HttpConnector;
use reqwest::header::{HOST, HeaderMap};
use reqwest::{Request, Url};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tower_service::Service;

use super::direct_response::{DirectResponse, cut};
use super::http_client::{chain, is_tls};
use super::http_connection::HttpConnection;
use super::remote_error::RemoteProblem;

/// The time after which an unused connection is not used again.
const IDLE: Duration = Duration::from_secs(90);
const KEEPALIVE: Duration = Duration::from_secs(15);

/// Connections of one runtime, whose bytes go to their place without a buffer in between. It
/// follows no redirects, and knows no proxies.
pub(super) struct DirectClient {
    tls: Arc<ClientConfig>,
    headers: HeaderMap,
    timeout: Duration,
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
    pub(super) fn new(tls: ClientConfig, headers: HeaderMap, timeout: Duration) -> DirectClient {
        let mut connector = HttpConnector::new();
        connector.enforce_http(false);
        connector.set_nodelay(true);
        connector.set_keepalive(Some(KEEPALIVE));
        connector.set_connect_timeout(Some(timeout));
        DirectClient { tls: Arc::new(tls), headers, timeout, connector, idle: Mutex::default() }
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
                result => {
                    let head = result.map_err(cut)?;
                    return Ok(DirectResponse::new(self.clone(), origin, head, connection));
                }
            }
        }
        let mut connection = self.connect(url).await?;
        let head = connection.exchange(&text).await.map_err(cut)?;
        Ok(DirectResponse::new(self.clone(), origin, head, connection))
    }

    /// Keeps a connection for another request.
    pub(super) fn keep(&self, origin: String, mut connection: HttpConnection) {
        if connection.reset().is_ok() {
            let unused = IdleConnection { origin, since: Instant::now(), connection };
            self.idle.lock().ignore_poison().push(unused);
        }
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
        let connected = connected.map_err(|error| match is_timeout(&error) {
            true => RemoteProblem::Timeout { timeout: self.timeout },
            false => failed(chain(&error)),
        });
        let tcp = connected?.into_inner();
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

fn is_timeout(error: &(dyn Error + 'static)) -> bool {
    let kind = error.downcast_ref::<io::Error>().map(io::Error::kind);
    kind == Some(io::ErrorKind::TimedOut) || error.source().is_some_and(is_timeout)
}
