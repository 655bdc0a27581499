//! Objects of S3, of servers that check signatures.

use std::fs;
use std::time::Duration;

use hostbuf_staging::{RemoteError, RemoteOptions, RemoteProblem};
use hostbuf_tests::Scratch;

use super::presigned_address::PresignedAddress;
use super::s3_server::{S3Server, SECRET};
use super::{both_modes, compare, content};

const PATH: &str = "/one/folder/a%20key";
const HOUR: Duration = Duration::from_secs(3600);

/// Makes the objects `folder/a key` and `empty` of the bucket `one`.
fn objects(folder: &Scratch) -> Vec<u8> {
    let content = content((3 << 20) + 5);
    fs::create_dir_all(folder.path("buckets/one/folder")).expect("the folder is writable");
    fs::write(folder.path("buckets/one/folder/a key"), &content).expect("the folder is writable");
    fs::write(folder.path("buckets/one/empty"), b"").expect("the folder is writable");
    content
}

/// Reads objects with signed requests, and requests what the server refuses.
fn read_with_key(server: &S3Server, content: &[u8]) {
    for options in both_modes() {
        let client = server.with_secret(options, SECRET).client().expect("valid options");
        let file = client.open("s3://one/folder/a%20key").expect("it is there");
        compare(&file, content);
        let mut middle = [0; 1000];
        assert_eq!(file.read(&mut middle, 1 << 20), Ok(1000));
        assert_eq!(middle, content[1 << 20..][..1000]);
        let mut end = [0; 1000];
        assert_eq!(file.read(&mut end, content.len() as u64 - 3), Ok(3));
        assert_eq!(end[..3], content[content.len() - 3..]);
        let empty = client.open("s3://one/empty").expect("it is there");
        assert_eq!((empty.bytes(), empty.read(&mut [0; 5], 0)), (0, Ok(0)));
        let missing = client.open("s3://one/none").expect_err("there is none");
        assert!(matches!(missing.problem, RemoteProblem::NotFound { .. }), "{missing}");
    }
    let client = server.with_secret(RemoteOptions::new(), "other").client().expect("valid options");
    let denied = client.open("s3://one/folder/a%20key").expect_err("the signature is wrong");
    assert!(matches!(denied.problem, RemoteProblem::Denied { .. }) && denied.attempts == 1, "{denied}");
    let text = denied.to_string();
    assert!(text.starts_with("s3://one/folder/a%20key: "), "{text}");
    assert!(
        text.contains("status 403, SignatureDoesNotMatch") && text.contains("Check the credentials"),
        "{text}"
    );
}

/// Reads an object by an address that is signed, without a key, and by two whose signature is not
/// valid.
fn read_presigned(server: &S3Server, content: &[u8]) {
    let sign = |age, valid| PresignedAddress { server, method: "GET", path: PATH, age, valid }.sign();
    let signed = sign(Duration::ZERO, HOUR);
    for options in both_modes() {
        let client = options.client().expect("valid options");
        let file = client.open_s3_presigned(&signed).expect("it is there");
        assert_eq!(file.url(), format!("http://{}{PATH}", server.host()));
        compare(&file, content);
        let refusals = [
            (sign(2 * HOUR, HOUR), "AccessDenied"),
            (signed.replace("X-Amz-Expires=3600", "X-Amz-Expires=7200"), "SignatureDoesNotMatch"),
        ];
        for (refused, code) in refusals {
            let error: RemoteError = client.open_s3_presigned(&refused).expect_err("it is not valid");
            assert!(matches!(error.problem, RemoteProblem::Denied { .. }), "{error}");
            assert_eq!((error.attempts, error.url.as_str()), (1, file.url()));
            let shown = format!("{error} {error:?}");
            assert!(shown.contains(code) && shown.contains("sign the address again"), "{shown}");
            let (_, signature) = refused.split_once("X-Amz-Signature=").expect("it is signed");
            assert!(!shown.contains("X-Amz") && !shown.contains(signature), "{shown}");
        }
    }
}

#[test]
fn objects_of_rclone_are_read_with_signed_requests() {
    let folder = Scratch::new("rclone-s3");
    let content = objects(&folder);
    let Some(server) = S3Server::rclone(&folder) else { return };
    read_with_key(&server, &content);
}

#[test]
fn objects_of_rclone_are_read_by_presigned_addresses() {
    let folder = Scratch::new("rclone-presigned");
    let content = objects(&folder);
    let Some(server) = S3Server::rclone(&folder) else { return };
    read_presigned(&server, &content);
}

#[test]
#[ignore = "needs s3s-fs (scripts/install-deps s3s-fs), which needs Rust 1.92"]
fn objects_of_s3s_fs_are_read_with_signed_requests() {
    let folder = Scratch::new("s3s-fs-key");
    let content = objects(&folder);
    read_with_key(&S3Server::s3s_fs(&folder), &content);
}

#[test]
#[ignore = "needs s3s-fs (scripts/install-deps s3s-fs), which needs Rust 1.92"]
fn objects_of_s3s_fs_are_read_by_presigned_addresses() {
    let folder = Scratch::new("s3s-fs-presigned");
    let content = objects(&folder);
    read_presigned(&S3Server::s3s_fs(&folder), &content);
}
