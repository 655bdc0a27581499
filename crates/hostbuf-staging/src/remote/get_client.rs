//! Connections whose bytes go to their place without a buffer in between.

use std::error::Error;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use hyper_util::client::legacy::connect::HttpConnector;
use reqwest::header::{HOST, HeaderMap};
use reqwest::{Request, Url};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tower_service::Service;

use super::connection_pool::ConnectionPool;
use super::get_response::{GetResponse, cut};
use super::http_connection::HttpConnection;
use super::remote_error::RemoteProblem;
use super::request_problem::{chain, is_tls};

/// The time after which a silent peer is probed.
const KEEPALIVE: Duration = Duration::from_secs(15);

/// Connections of one runtime, whose bytes go to their place without a buffer in between. It
/// follows no redirects, and knows no proxies.
pub(super) struct GetClient {
    tls: Arc<ClientConfig>,
    headers: HeaderMap,
    timeout: Duration,
    connector: HttpConnector,
    pool: Arc<ConnectionPool>,
}

impl GetClient {
    /// Makes a client that sends `headers` with each request.
    pub(super) fn new(tls: ClientConfig, headers: HeaderMap, timeout: Duration) -> GetClient {
        let mut connector = HttpConnector::new();
        connector.enforce_http(false);
        connector.set_nodelay(true);
        connector.set_keepalive(Some(KEEPALIVE));
        connector.set_connect_timeout(Some(timeout));
        GetClient { tls: Arc::new(tls), headers, timeout, connector, pool: Arc::default() }
    }

    /// Sends a request for GET, and receives the head of the answer.
    pub(super) async fn get(&self, request: &Request) -> Result<GetResponse, RemoteProblem> {
        let url = request.url();
        let origin = origin(url);
        let text = self.encode(request);
        while let Some(mut connection) = self.pool.take(&origin) {
            match connection.exchange(&text).await {
                // The server has closed it at the same time.
                Err(_) if !connection.has_received() => {}
                result => {
                    let head = result.map_err(cut)?;
                    return Ok(GetResponse::new(self.pool.clone(), origin, head, connection));
                }
            }
        }
        let mut connection = self.connect(url).await?;
        let head = connection.exchange(&text).await.map_err(cut)?;
        Ok(GetResponse::new(self.pool.clone(), origin, head, connection))
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
