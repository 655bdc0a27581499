//! A client of HTTP/1.1 that receives bodies in the caller's memory.

use std::error::Error;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use hyper_util::client::legacy::connect::HttpConnector;
use reqwest::header::{CONNECTION, CONTENT_LENGTH, EXPECT, HOST, HeaderMap, TE, TRANSFER_ENCODING, UPGRADE};
use reqwest::{Method, Request, Url};
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

/// A client of HTTP/1.1 for GET, which receives bodies in the caller's memory. It belongs to one
/// runtime, and has connections of its own. It follows no redirects, and uses no proxies.
pub(super) struct GetClient {
    tls: Arc<ClientConfig>,
    headers: HeaderMap,
    timeout: Duration,
    connector: HttpConnector,
    pool: Arc<ConnectionPool>,
}

impl GetClient {
    /// Makes a client that sends `headers` with each request, and keeps at most `connections` idle
    /// connections.
    pub(super) fn new(
        tls: ClientConfig,
        headers: HeaderMap,
        timeout: Duration,
        connections: usize,
    ) -> GetClient {
        let mut connector = HttpConnector::new();
        connector.enforce_http(false);
        connector.set_nodelay(true);
        connector.set_keepalive(Some(KEEPALIVE));
        connector.set_connect_timeout(Some(timeout));
        let (tls, pool) = (Arc::new(tls), Arc::new(ConnectionPool::new(connections)));
        GetClient { tls, headers, timeout, connector, pool }
    }

    /// Returns the idle connections.
    pub(super) fn pool(&self) -> &ConnectionPool {
        &self.pool
    }

    /// Returns whether this client can send a request: it is for GET, and has no headers that
    /// change what follows on the connection.
    pub(super) fn can_send(&self, request: &Request) -> bool {
        let has = |name| request.headers().contains_key(&name) || self.headers.contains_key(&name);
        let others = [CONNECTION, CONTENT_LENGTH, EXPECT, TE, TRANSFER_ENCODING, UPGRADE];
        request.method() == Method::GET && request.body().is_none() && !others.into_iter().any(has)
    }

    /// Sends a request, and receives the head of the response.
    pub(super) async fn send(&self, request: &Request) -> Result<GetResponse, RemoteProblem> {
        let url = request.url();
        let (origin, text) = (origin(url), self.encode(request));
        if let Some(mut connection) = self.pool.take(&origin) {
            match connection.exchange(&text).await {
                // The server has closed the idle connection before the request arrived. This
                // happens at most once, since the next connection is a new one.
                Err(error) if is_closed(&error) && !connection.has_received() => {}
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
        // A signature is that of these bytes: they are not normalised again.
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
        let uri = uri.ok_or_else(|| failed("its address is not one of HTTP".to_owned()))?;
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

/// Returns whether the server has closed a connection.
fn is_closed(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), BrokenPipe | ConnectionAborted | ConnectionReset | UnexpectedEof)
}

#[cfg(test)]
mod tests {
    use reqwest::header::HeaderValue;

    use super::*;

    fn client(headers: &[(&'static str, &'static str)]) -> GetClient {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let builder = builder.expect("the versions of the provider");
        let tls = builder.with_root_certificates(rustls::RootCertStore::empty()).with_no_client_auth();
        let headers = headers
            .iter()
            .map(|(name, value)| (name.parse().expect("a name"), HeaderValue::from_static(value)));
        GetClient::new(tls, headers.collect(), Duration::from_secs(1), 1)
    }

    fn get(url: &str) -> Request {
        Request::new(Method::GET, url.parse().expect("an address"))
    }

    #[test]
    fn the_bytes_of_the_address_are_those_that_were_signed() {
        let text = |url: &str| {
            let text = client(&[("accept", "*/*")]).encode(&get(url));
            String::from_utf8(text).expect("an ASCII text")
        };
        let path = "/b%20c/%C3%A4%2Fd+e/~f?X-Amz-Credential=a%2Fb&X-Amz-Signature=0a%3D&x=a b#fragment";
        assert_eq!(
            text(&format!("https://host.example:8443{path}")),
            "GET /b%20c/%C3%A4%2Fd+e/~f?X-Amz-Credential=a%2Fb&X-Amz-Signature=0a%3D&x=a%20b HTTP/1.1\r\n\
             host: host.example:8443\r\naccept: */*\r\n\r\n"
        );
        assert_eq!(text("http://[::1]:80"), "GET / HTTP/1.1\r\nhost: [::1]\r\naccept: */*\r\n\r\n");
        assert_eq!(text("https://[::1]:80/?"), "GET /? HTTP/1.1\r\nhost: [::1]:80\r\naccept: */*\r\n\r\n");
    }

    #[test]
    fn headers_of_a_request_replace_those_of_the_client() {
        let mut request = get("http://host/");
        request.headers_mut().insert(HOST, HeaderValue::from_static("other"));
        request.headers_mut().insert("accept", HeaderValue::from_static("one"));
        let text = client(&[("accept", "*/*"), ("x-own", "1")]).encode(&request);
        let text = String::from_utf8(text).expect("an ASCII text");
        assert_eq!(text, "GET / HTTP/1.1\r\nhost: other\r\naccept: one\r\nx-own: 1\r\n\r\n");
    }

    #[test]
    fn other_methods_and_headers_of_the_connection_are_left_to_the_library() {
        let plain = client(&[("accept", "*/*")]);
        assert!(plain.can_send(&get("http://host/")));
        for method in [Method::HEAD, Method::PUT, Method::POST, Method::DELETE] {
            assert!(!plain.can_send(&Request::new(method, "http://host/".parse().expect("an address"))));
        }
        let mut with_body = get("http://host/");
        *with_body.body_mut() = Some("body".into());
        assert!(!plain.can_send(&with_body));
        for name in ["connection", "content-length", "expect", "te", "transfer-encoding", "upgrade"] {
            assert!(!client(&[(name, "x")]).can_send(&get("http://host/")), "{name}");
            let mut request = get("http://host/");
            request.headers_mut().insert(name, HeaderValue::from_static("x"));
            assert!(!plain.can_send(&request), "{name}");
        }
    }

    #[test]
    fn an_origin_has_a_scheme_a_host_and_a_port() {
        let same = |one: &str, other: &str| origin(get(one).url()) == origin(get(other).url());
        assert!(same("http://host/a", "http://HOST:80/b?c"));
        assert!(same("https://user@host/", "https://host:443/"));
        assert!(!same("http://host:443/", "https://host/"));
        assert!(!same("http://host/", "http://host:8080/"));
        assert!(!same("http://host/", "http://host.example/"));
    }
}
