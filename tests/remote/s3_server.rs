//! An S3 server that checks signatures.

use std::process::Command;

use hostbuf_staging::RemoteOptions;
use hostbuf_tests::{Scratch, root, skip};

use super::local_server::LocalServer;

/// The name and the secret of the key that the servers know.
pub const NAME: &str = "name";
pub const SECRET: &str = "secret";
/// The region of the signatures.
pub const REGION: &str = "eu-central-1";

/// An S3 server whose buckets are the folders in the folder `buckets`. It ends when it is dropped.
pub struct S3Server {
    _process: LocalServer,
    port: u16,
}

impl S3Server {
    /// Starts rclone, or skips the test if it is not installed. It answers the request of a range
    /// with status 200.
    pub fn rclone(folder: &Scratch) -> Option<S3Server> {
        let program = root().join("target/servers/bin/rclone");
        if !program.exists() {
            skip("remote objects of S3: rclone is not installed (scripts/install-deps servers)");
            return None;
        }
        let (process, [port]) = LocalServer::start(|[port]| {
            let mut command = Command::new(&program);
            command.args(["serve", "s3", "--auth-key", &format!("{NAME},{SECRET}"), "--addr"]);
            command.arg(format!("127.0.0.1:{port}")).arg(folder.path("buckets"));
            command.arg("--config").arg(folder.path("none")).env("HOME", folder.path("")).arg("-q");
            command
        });
        Some(S3Server { _process: process, port })
    }

    /// Returns the address and the port.
    pub fn host(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Adds the address of the server, and a key with this secret.
    pub fn with_secret(&self, options: RemoteOptions, secret: &str) -> RemoteOptions {
        options
            .s3("aws_endpoint", format!("http://{}", self.host()))
            .s3("aws_region", REGION)
            .s3("aws_access_key_id", NAME)
            .s3("aws_secret_access_key", secret)
    }
}
