//! The options of a broker.

use std::path::PathBuf;
use std::time::Duration;

use crate::socket_name::default_socket;

/// The options of a broker.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BrokerOptions {
    /// The largest sum of bytes of all segments.
    pub limit: u64,
    /// The largest sum of bytes of the segments of one client.
    pub per_client: u64,
    /// The largest sum of bytes of the GPU memory of all segments, on all GPUs together.
    pub gpu_limit: u64,
    /// The largest sum of bytes of the GPU memory of one client's segments.
    pub gpu_per_client: u64,
    /// The time without a client and without a segment after which the broker ends; `None` if it
    /// does not end by itself.
    pub idle: Option<Duration>,
    /// The time for which readers may still acquire what a producer has published before it ended.
    pub linger: Duration,
    /// The abstract name of the socket, without the leading zero byte.
    pub name: String,
    /// The path of a second socket, for clients in other network namespaces.
    pub path: Option<PathBuf>,
}

impl BrokerOptions {
    /// The default of [`limit`](BrokerOptions::limit) and of
    /// [`gpu_limit`](BrokerOptions::gpu_limit).
    pub const LIMIT: u64 = 1 << 30;
    /// The default of [`per_client`](BrokerOptions::per_client) and of
    /// [`gpu_per_client`](BrokerOptions::gpu_per_client).
    pub const PER_CLIENT: u64 = 256 << 20;
    /// The default of [`linger`](BrokerOptions::linger).
    pub const LINGER: Duration = Duration::from_secs(5);

    /// Makes the default options of this user.
    #[must_use]
    pub fn new() -> BrokerOptions {
        BrokerOptions {
            limit: BrokerOptions::LIMIT,
            per_client: BrokerOptions::PER_CLIENT,
            gpu_limit: BrokerOptions::LIMIT,
            gpu_per_client: BrokerOptions::PER_CLIENT,
            idle: None,
            linger: BrokerOptions::LINGER,
            name: default_socket(),
            path: None,
        }
    }

    /// Sets the largest sum of bytes of all segments.
    #[must_use]
    pub fn limit(mut self, bytes: u64) -> BrokerOptions {
        self.limit = bytes;
        self
    }

    /// Sets the largest sum of bytes of the segments of one client.
    #[must_use]
    pub fn per_client(mut self, bytes: u64) -> BrokerOptions {
        self.per_client = bytes;
        self
    }

    /// Sets the largest sum of bytes of the GPU memory of all segments.
    #[must_use]
    pub fn gpu_limit(mut self, bytes: u64) -> BrokerOptions {
        self.gpu_limit = bytes;
        self
    }

    /// Sets the largest sum of bytes of the GPU memory of one client's segments.
    #[must_use]
    pub fn gpu_per_client(mut self, bytes: u64) -> BrokerOptions {
        self.gpu_per_client = bytes;
        self
    }

    /// Sets the time after which an unused broker ends.
    #[must_use]
    pub fn idle(mut self, time: Duration) -> BrokerOptions {
        self.idle = Some(time);
        self
    }

    /// Sets the time for which the blocks of a producer that has ended stay readable.
    #[must_use]
    pub fn linger(mut self, time: Duration) -> BrokerOptions {
        self.linger = time;
        self
    }

    /// Sets the abstract name of the socket.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> BrokerOptions {
        self.name = name.into();
        self
    }

    /// Sets the path of a second socket.
    #[must_use]
    pub fn path(mut self, path: impl Into<PathBuf>) -> BrokerOptions {
        self.path = Some(path.into());
        self
    }
}

impl Default for BrokerOptions {
    fn default() -> BrokerOptions {
        BrokerOptions::new()
    }
}
