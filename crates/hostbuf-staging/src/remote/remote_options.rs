//! The options of a client.

use std::fmt;
use std::time::Duration;

/// The threads that make the requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum RequestMode {
    /// Each thread that reads makes one request at a time by itself, on a connection of its own. A
    /// ring has as many requests in flight as it has [workers](crate::RingOptions::workers).
    #[default]
    Easy,
    /// A few threads of the client make the requests of all threads that read. A read is divided
    /// into parts that are requested at the same time.
    Reactors {
        /// The number of threads, at least 1.
        threads: usize,
        /// The most requests in flight in each thread, at least 1.
        requests: usize,
    },
}

/// The options of a [`RemoteClient`](super::RemoteClient).
#[derive(Clone)]
#[non_exhaustive]
pub struct RemoteOptions {
    /// The threads that make the requests.
    pub mode: RequestMode,
    /// The most attempts in a row that bring nothing, at least 1. Temporary failures are tried
    /// again: connections that are refused or cut, timeouts, and the statuses 408, 429, 500, 502,
    /// 503 and 504. An attempt goes on at the byte where the one before was cut.
    pub attempts: u32,
    /// The time before the second attempt. It doubles with each further one, up to 10 s, and varies
    /// at random. A server's `Retry-After` in seconds replaces it, up to 60 s.
    pub backoff: Duration,
    /// The most time without a byte from the server.
    pub timeout: Duration,
    /// The headers of all requests, by name. Their values appear in no message.
    pub headers: Vec<(String, String)>,
    /// The certificates of authorities in PEM, in addition to those of the system.
    pub certificates: Vec<Vec<u8>>,
    /// The settings of S3 by their names in `object_store`, such as `aws_endpoint`, `aws_region`,
    /// `aws_access_key_id` and `aws_secret_access_key`. They replace those of the environment
    /// (`AWS_ENDPOINT_URL`, ...).
    pub s3: Vec<(String, String)>,
}

impl RequestMode {
    /// Makes the mode of `threads` threads that have up to `requests` requests in flight each.
    #[must_use]
    pub fn reactors(threads: usize, requests: usize) -> RequestMode {
        RequestMode::Reactors { threads, requests }
    }
}

impl Default for RemoteOptions {
    fn default() -> RemoteOptions {
        RemoteOptions {
            mode: RequestMode::default(),
            attempts: 5,
            backoff: Duration::from_millis(100),
            timeout: Duration::from_secs(30),
            headers: Vec::new(),
            certificates: Vec::new(),
            s3: Vec::new(),
        }
    }
}

impl RemoteOptions {
    /// Makes the default options: [`RequestMode::Easy`], 5 attempts, 100 ms before the second one,
    /// 30 s without a byte.
    #[must_use]
    pub fn new() -> RemoteOptions {
        RemoteOptions::default()
    }

    /// Sets the threads that make the requests.
    #[must_use]
    pub fn mode(mut self, mode: RequestMode) -> RemoteOptions {
        self.mode = mode;
        self
    }

    /// Sets the most attempts in a row that bring nothing.
    #[must_use]
    pub fn attempts(mut self, attempts: u32) -> RemoteOptions {
        self.attempts = attempts;
        self
    }

    /// Sets the time before the second attempt.
    #[must_use]
    pub fn backoff(mut self, backoff: Duration) -> RemoteOptions {
        self.backoff = backoff;
        self
    }

    /// Sets the most time without a byte from the server.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> RemoteOptions {
        self.timeout = timeout;
        self
    }

    /// Adds a header to all requests of objects, such as `authorization`. A server to which a
    /// request is redirected does not get `authorization`, `cookie` and `proxy-authorization`, but
    /// all other headers.
    #[must_use]
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> RemoteOptions {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// Adds certificates of authorities in PEM.
    #[must_use]
    pub fn certificates(mut self, pem: impl Into<Vec<u8>>) -> RemoteOptions {
        self.certificates.push(pem.into());
        self
    }

    /// Sets a setting of S3.
    #[must_use]
    pub fn s3(mut self, name: impl Into<String>, value: impl Into<String>) -> RemoteOptions {
        self.s3.push((name.into(), value.into()));
        self
    }
}

impl fmt::Debug for RemoteOptions {
    /// Shows no values of headers and settings, which may be secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names =
            |pairs: &[(String, String)]| pairs.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
        f.debug_struct("RemoteOptions")
            .field("mode", &self.mode)
            .field("attempts", &self.attempts)
            .field("backoff", &self.backoff)
            .field("timeout", &self.timeout)
            .field("headers", &names(&self.headers))
            .field("certificates", &self.certificates.len())
            .field("s3", &names(&self.s3))
            .finish()
    }
}
