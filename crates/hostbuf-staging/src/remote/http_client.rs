//! HTTP clients with the options of a [`RemoteClient`](super::RemoteClient).

use std::sync::Arc;
use std::time::Duration;

use hyper_util::client::proxy::matcher::Matcher;
use reqwest::header::{ACCEPT, ACCEPT_ENCODING, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Client, ClientBuilder};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};

use super::get_client::GetClient;
use super::range_client::RangeClient;
use super::remote_error::RemoteProblem;
use super::remote_options::RemoteOptions;
use super::request_problem::chain;

/// The fewest idle connections that a runtime may keep, for clients that read from many servers.
const FEWEST_CONNECTIONS: usize = 32;

/// The settings of HTTP clients. A client belongs to one runtime, whose thread drives its
/// connections.
pub(super) struct HttpClients {
    tls: ClientConfig,
    proxies: Arc<Matcher>,
    headers: HeaderMap,
    timeout: Duration,
}

impl HttpClients {
    pub(super) fn new(options: &RemoteOptions) -> Result<HttpClients, RemoteProblem> {
        let mut headers = HeaderMap::new();
        for (name, value) in &options.headers {
            let parsed = HeaderName::from_bytes(name.as_bytes()).ok().zip(HeaderValue::from_str(value).ok());
            let (known, mut value) = parsed.ok_or_else(|| {
                option(format!(
                    "invalid header \"{name}\": a name has letters, digits and -, and a value no line end"
                ))
            })?;
            value.set_sensitive(true);
            headers.append(known, value);
        }
        // Ranges of a compressed form are other bytes.
        headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        if !headers.contains_key(ACCEPT) {
            headers.insert(ACCEPT, HeaderValue::from_static("*/*"));
        }
        let (tls, proxies) = (tls(&options.certificates)?, Arc::new(Matcher::from_system()));
        Ok(HttpClients { tls, proxies, headers, timeout: options.timeout })
    }

    /// Makes a client for one runtime, which sends at most `requests` requests at a time.
    pub(super) fn client(&self, requests: usize) -> Result<RangeClient, RemoteProblem> {
        // Ranges in parallel want connections of their own, which HTTP/2 does not use.
        let builder = Client::builder()
            .http1_only()
            .tls_backend_preconfigured(self.tls.clone())
            .default_headers(self.headers.clone())
            .connect_timeout(self.timeout)
            .tcp_nodelay(true);
        let mut tls = self.tls.clone();
        tls.alpn_protocols = vec![b"http/1.1".to_vec()];
        let connections = requests.max(FEWEST_CONNECTIONS);
        Ok(RangeClient {
            library: HttpClients::built(builder)?,
            own: Arc::new(GetClient::new(tls, self.headers.clone(), self.timeout, connections)),
            proxies: self.proxies.clone(),
            timeout: self.timeout,
        })
    }

    /// Makes a client for the services that give credentials, which any runtime may use. It sends
    /// no headers of the options.
    pub(super) fn credential_client(&self) -> Result<Client, RemoteProblem> {
        // A machine without such a service does not answer at its address.
        let builder = Client::builder()
            .tls_backend_preconfigured(self.tls.clone())
            .connect_timeout(self.timeout.min(Duration::from_secs(2)))
            .timeout(self.timeout)
            .pool_max_idle_per_host(0);
        HttpClients::built(builder)
    }

    fn built(builder: ClientBuilder) -> Result<Client, RemoteProblem> {
        // The address of a request may have a signature, which a server to which the request is
        // redirected would get by this header.
        builder.referer(false).build().map_err(|error| option(chain(&error)))
    }
}

/// Makes the settings of TLS: the authorities of the system, and those of the options.
fn tls(certificates: &[Vec<u8>]) -> Result<ClientConfig, RemoteProblem> {
    let mut roots = RootCertStore::empty();
    let native = rustls_native_certs::load_native_certs();
    for error in &native.errors {
        tracing::debug!(%error, "a certificate of the system cannot be read");
    }
    roots.add_parsable_certificates(native.certs);
    for pem in certificates {
        let found: Vec<_> = CertificateDer::pem_slice_iter(pem).collect::<Result<_, _>>().unwrap_or_default();
        if found.is_empty() {
            return Err(option("certificates: expected at least one certificate in PEM".into()));
        }
        for certificate in found {
            roots.add(certificate).map_err(|error| option(format!("certificates: {error}")))?;
        }
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let builder = builder.map_err(|error| option(format!("TLS: {error}")))?;
    Ok(builder.with_root_certificates(roots).with_no_client_auth())
}

fn option(why: String) -> RemoteProblem {
    RemoteProblem::Option { why }
}
