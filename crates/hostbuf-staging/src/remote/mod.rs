//! Objects of servers: HTTP, S3 and WebHDFS.

mod connection_pool;
mod connection_runtime;
mod content_range;
mod easy_threads;
mod get_client;
mod get_response;
mod http_client;
mod http_connection;
mod low_water_socket;
mod object_address;
mod object_version;
mod range_client;
mod range_stream;
mod reactors;
mod remote_client;
mod remote_error;
mod remote_file;
mod remote_object;
mod remote_options;
mod request_problem;
mod request_threads;
mod response_check;
mod response_head;
mod retries;
mod s3_signer;
mod shown_url;
#[cfg(test)]
mod tests;
mod tls_session;
mod web_hdfs;

pub use remote_client::RemoteClient;
pub use remote_error::{RemoteError, RemoteProblem};
pub use remote_file::RemoteFile;
pub use remote_options::{RemoteOptions, RequestMode};
