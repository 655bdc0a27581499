//! An object of S3 that was stored by a signed request.

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::time::Duration;

use hostbuf_tests::Scratch;

use super::content;
use super::presigned_address::PresignedAddress;
use super::s3_server::S3Server;

/// The address of the object.
pub const URL: &str = "s3://one/data";

/// Starts s3s-fs, and stores an object of `bytes` bytes. Returns the server and the content.
pub fn store(folder: &Scratch, bytes: usize) -> (S3Server, Vec<u8>) {
    fs::create_dir_all(folder.path("buckets/one")).expect("the folder is writable");
    let (server, content) = (S3Server::s3s_fs(folder), content(bytes));
    replace(&server, &content);
    (server, content)
}

/// Stores another object in place of the one that is there.
pub fn replace(server: &S3Server, content: &[u8]) {
    let (age, valid) = (Duration::ZERO, Duration::from_secs(3600));
    let signed = PresignedAddress { server, method: "PUT", path: "/one/data", age, valid }.sign();
    let host = server.host();
    let target = signed.strip_prefix(&format!("http://{host}")).expect("an address of the server");
    let length = content.len();
    let head = format!(
        "PUT {target} HTTP/1.1\r\nHost: {host}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
    );
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, server.port())).expect("the server runs");
    stream.write_all(head.as_bytes()).expect("the server receives");
    stream.write_all(content).expect("the server receives");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("the server answers");
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
}
