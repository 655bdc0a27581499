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
    process: LocalServer,
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
        Some(S3Server { process, port })
    }

    /// Starts s3s-fs. It answers the request of a range with status 206, and states an ETag.
    pub fn s3s_fs(folder: &Scratch) -> S3Server {
        let program = root().join("target/tools/bin/s3s-fs");
        assert!(program.exists(), "s3s-fs is not installed: run scripts/install-deps s3s-fs");
        let (process, [port]) = LocalServer::start(|[port]| {
            let mut command = Command::new(&program);
            command.args(["--access-key", NAME, "--secret-key", SECRET, "--host", "127.0.0.1"]);
            command.args(["--port", &port.to_string()]).arg(folder.path("buckets"));
            command
        });
        S3Server { process, port }
    }

    /// Returns the address and the port.
    pub fn host(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// Kills the server, and waits until it has ended.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Starts the server again after [`S3Server::kill`], at the same port.
    pub fn restart(&mut self) {
        self.process.restart();
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
