//! Objects of S3, by signed addresses.

use std::time::Duration;

use object_store::aws::{AmazonS3, AmazonS3Builder, AmazonS3ConfigKey};
use object_store::client::{HttpClient, HttpConnector};
use object_store::path::Path;
use object_store::signer::Signer;
use object_store::{ClientOptions, RetryConfig};
use reqwest::{Client, Method, Url};

use super::remote_error::RemoteProblem;
use super::remote_options::RemoteOptions;
use super::request_problem::chain;

/// The time for which a signed address is valid: that of one request, and of a clock that differs.
const VALID: Duration = Duration::from_secs(900);

/// An object of S3. `object_store` finds the credentials, renews them, and signs each request in
/// its address (Signature Version 4).
#[derive(Debug)]
pub(super) struct S3Signer {
    store: AmazonS3,
    path: Path,
}

/// Requests of credentials by a client of reqwest.
#[derive(Debug)]
struct SharedClient(Client);

impl HttpConnector for SharedClient {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(self.0.clone()))
    }
}

impl S3Signer {
    /// Makes the signer of an object: `s3://bucket/key`. `client` has no pool.
    pub(super) fn new(url: &Url, options: &RemoteOptions, client: Client) -> Result<S3Signer, RemoteProblem> {
        let form = |why: &str| RemoteProblem::Address { why: format!("expected s3://BUCKET/KEY: {why}") };
        let bucket =
            url.host_str().filter(|host| !host.is_empty()).ok_or_else(|| form("it has no bucket"))?;
        let has_more = url.query().is_some() || url.fragment().is_some();
        if has_more || !url.username().is_empty() || url.port().is_some() {
            return Err(form(
                "it has a user, a port, a query or a fragment. Write ? of a key as %3F, and # as %23",
            ));
        }
        let path = Path::from_url_path(url.path()).map_err(|error| form(&error.to_string()))?;
        if path.as_ref().is_empty() {
            return Err(form("it has no key"));
        }
        if url.path().ends_with('/') {
            return Err(form("its key ends with /, as that of a folder"));
        }
        let retry = RetryConfig { max_retries: 2, retry_timeout: options.timeout, ..RetryConfig::default() };
        let builder = AmazonS3Builder::from_env()
            .with_bucket_name(bucket)
            .with_retry(retry)
            .with_http_connector(SharedClient(client));
        let builder = options.s3.iter().try_fold(builder, |builder, (name, value)| {
            let key: AmazonS3ConfigKey = name.parse().map_err(|_| RemoteProblem::Option {
                why: format!(
                    "s3: unknown setting \"{name}\": expected one of object_store, such as aws_region"
                ),
            })?;
            Ok(builder.with_config(key, value))
        })?;
        if builder.get_config_value(&AmazonS3ConfigKey::SkipSignature).is_some_and(|skips| skips == "true") {
            let why = "s3: requests without a signature are those of the https:// address of the object: open that one";
            return Err(RemoteProblem::Option { why: why.into() });
        }
        let store = builder
            .build()
            .map_err(|error| RemoteProblem::Option { why: format!("s3: {}", chain(&error)) })?;
        Ok(S3Signer { store, path })
    }

    /// Returns the signed address of the next request.
    pub(super) async fn url(&self) -> Result<Url, RemoteProblem> {
        let signed = self.store.signed_url(Method::GET, &self.path, VALID).await;
        signed.map_err(|error| {
            // The text of a service may have several lines.
            let why = chain(&error).lines().next().unwrap_or_default().to_owned();
            RemoteProblem::Credentials { why }
        })
    }
}
