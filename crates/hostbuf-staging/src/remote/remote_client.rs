//! A client of servers.

use std::fmt;
use std::sync::Arc;

use tracing::debug_span;

use super::http_client::HttpClients;
use super::object_address::ObjectAddress;
use super::remote_error::{RemoteError, RemoteProblem};
use super::remote_file::RemoteFile;
use super::remote_object::RemoteObject;
use super::remote_options::RemoteOptions;
use super::request_threads::RequestThreads;

impl RemoteOptions {
    /// Makes a client.
    ///
    /// # Errors
    /// [`RemoteProblem::Option`] for an invalid option.
    pub fn client(self) -> Result<RemoteClient, RemoteError> {
        RemoteClient::new(self)
    }
}

/// A client of servers of HTTP, S3 and WebHDFS: its options, connections and threads. Clones are
/// the same client.
///
/// Connections are kept for further requests: for each server at most as many as there are threads
/// that read at a time, or requests of reactors.
#[derive(Clone)]
pub struct RemoteClient(Arc<ClientParts>);

struct ClientParts {
    options: RemoteOptions,
    clients: Arc<HttpClients>,
    threads: Arc<RequestThreads>,
}

impl RemoteClient {
    pub(super) fn new(options: RemoteOptions) -> Result<RemoteClient, RemoteError> {
        let failed = |problem| RemoteError::before("", problem);
        if options.attempts == 0 {
            let why = "attempts: 0 makes no request: expected at least 1".to_owned();
            return Err(failed(RemoteProblem::Option { why }));
        }
        let clients = Arc::new(HttpClients::new(&options).map_err(failed)?);
        let threads = Arc::new(RequestThreads::new(options.mode, &clients).map_err(failed)?);
        Ok(RemoteClient(Arc::new(ClientParts { options, clients, threads })))
    }

    /// Returns the options.
    #[must_use]
    pub fn options(&self) -> &RemoteOptions {
        &self.0.options
    }

    /// Opens an object, by the scheme of its address: `http://`, `https://`, `s3://BUCKET/KEY`,
    /// `webhdfs://HOST:PORT/PATH`, or `swebhdfs://` for WebHDFS with TLS. Asks the server for the
    /// length.
    ///
    /// # Errors
    /// [`RemoteError`].
    pub fn open(&self, url: &str) -> Result<RemoteFile, RemoteError> {
        self.open_as(url, &[])
    }

    /// Opens an object of an HTTP server, by `http://` or `https://`.
    ///
    /// # Errors
    /// As [`open`](RemoteClient::open).
    pub fn open_http(&self, url: &str) -> Result<RemoteFile, RemoteError> {
        self.open_as(url, &["http", "https"])
    }

    /// Opens an object of S3: `s3://BUCKET/KEY`. The credentials are those of the
    /// [settings](RemoteOptions::s3), of the environment, or of the machine's role.
    ///
    /// # Errors
    /// As [`open`](RemoteClient::open).
    pub fn open_s3(&self, url: &str) -> Result<RemoteFile, RemoteError> {
        self.open_as(url, &["s3"])
    }

    /// Opens an object of S3 by an address that somebody has signed for GET, which needs no
    /// credentials. Messages do not show the signature.
    ///
    /// # Errors
    /// As [`open`](RemoteClient::open). A signature that expires is
    /// [`RemoteProblem::Denied`] of later reads.
    pub fn open_s3_presigned(&self, url: &str) -> Result<RemoteFile, RemoteError> {
        self.open_http(url)
    }

    /// Opens a file of HDFS: `webhdfs://HOST:PORT/PATH`, or `swebhdfs://` with TLS. Parameters such
    /// as `user.name` and `delegation` are a query of the address. A file that changes is noticed
    /// only by a read beyond its new end.
    ///
    /// # Errors
    /// As [`open`](RemoteClient::open).
    pub fn open_webhdfs(&self, url: &str) -> Result<RemoteFile, RemoteError> {
        self.open_as(url, &["webhdfs", "swebhdfs"])
    }

    fn open_as(&self, url: &str, schemes: &[&str]) -> Result<RemoteFile, RemoteError> {
        let options = &self.0.options;
        let (address, shown) = ObjectAddress::parse(url, schemes, options, &self.0.clients)?;
        let _span = debug_span!("open", object = %shown).entered();
        let shown_again = shown.clone();
        let object = self
            .0
            .threads
            .easy
            .run(async |client| RemoteObject::open(client, address, shown, options.clone()).await);
        let object = object.map_err(|error| match error.url.is_empty() {
            true => RemoteError { url: shown_again, ..error },
            false => error,
        })?;
        Ok(RemoteFile::new(self.0.threads.clone(), Arc::new(object)))
    }
}

impl RemoteFile {
    /// Opens an object by a client of its own with the default options. Use one [`RemoteClient`]
    /// for several objects.
    ///
    /// # Errors
    /// As [`RemoteClient::open`].
    pub fn open(url: &str) -> Result<RemoteFile, RemoteError> {
        RemoteOptions::new().client()?.open(url)
    }
}

impl fmt::Debug for RemoteClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteClient").field("options", &self.0.options).finish_non_exhaustive()
    }
}
