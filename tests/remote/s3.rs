//! The S3 server of rclone, which checks signatures.

use std::fs;
use std::process::Command;

use hostbuf_staging::{RemoteError, RemoteOptions, RemoteProblem};
use hostbuf_tests::{Scratch, root, skip};

use super::local_server::LocalServer;
use super::{both_modes, compare, content};

/// Starts the server for the folder `buckets`. Returns it with its port, or `None` if it is not
/// installed.
fn start(folder: &Scratch) -> Option<(LocalServer, u16)> {
    let rclone = root().join("target/servers/bin/rclone");
    if !rclone.exists() {
        skip("remote objects of S3: rclone is not installed (scripts/install-deps servers)");
        return None;
    }
    let (server, [port]) = LocalServer::start(|[port]| {
        let mut command = Command::new(&rclone);
        command.args(["serve", "s3", "--auth-key", "name,secret", "--addr"]);
        command.arg(format!("127.0.0.1:{port}")).arg(folder.path("buckets"));
        command.arg("--config").arg(folder.path("none")).env("HOME", folder.path("")).arg("-q");
        command
    });
    Some((server, port))
}

fn with_key(options: RemoteOptions, port: u16, secret: &str) -> RemoteOptions {
    options
        .s3("aws_endpoint", format!("http://127.0.0.1:{port}"))
        .s3("aws_region", "eu-central-1")
        .s3("aws_access_key_id", "name")
        .s3("aws_secret_access_key", secret)
}

#[test]
fn objects_are_read_with_signed_requests() {
    let folder = Scratch::new("rclone-s3");
    let content = content((3 << 20) + 5);
    fs::create_dir_all(folder.path("buckets/one/folder")).expect("the folder is writable");
    fs::write(folder.path("buckets/one/folder/a key"), &content).expect("the folder is writable");
    fs::write(folder.path("buckets/one/empty"), b"").expect("the folder is writable");
    let Some((_server, port)) = start(&folder) else { return };
    for options in both_modes() {
        let client = with_key(options, port, "secret").client().expect("valid options");
        let file = client.open("s3://one/folder/a%20key").expect("it is there");
        compare(&file, &content);
        let empty = client.open("s3://one/empty").expect("it is there");
        assert_eq!((empty.bytes(), empty.read(&mut [0; 5], 0)), (0, Ok(0)));
        let missing = client.open("s3://one/none").expect_err("there is none");
        assert!(matches!(missing.problem, RemoteProblem::NotFound { .. }), "{missing}");
    }
    let client = with_key(RemoteOptions::new(), port, "other").client().expect("valid options");
    let denied: RemoteError = client.open("s3://one/folder/a%20key").expect_err("the signature is wrong");
    assert!(matches!(denied.problem, RemoteProblem::Denied { .. }), "{denied}");
    assert!(denied.to_string().contains("SignatureDoesNotMatch"), "{denied}");
}
