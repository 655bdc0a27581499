//! Objects of S3 that are replaced or removed while they are read.

use std::fs;
use std::sync::Arc;

use hostbuf_staging::{
    BorrowedMemory, DeviceTarget, HostDevice, HostMemory, RemoteError, RemoteFile, RemoteProblem, Ring,
    RingOptions, TransferError,
};
use hostbuf_tests::Scratch;

use super::relay::Relay;
use super::s3_server::{S3Server, SECRET};
use super::stored_object::{URL, replace, store};
use super::{both_modes, compare};

const BYTES: usize = 8 << 20;

/// Returns what another object has at the same key: shorter, longer, and as long.
fn others(content: &[u8]) -> [Vec<u8>; 3] {
    let reversed: Vec<u8> = content.iter().rev().copied().collect();
    [content[1..1000].to_vec(), [content, b"more"].concat(), reversed]
}

/// Checks that an error names the object, the change and the remedy.
#[track_caller]
fn assert_changed(error: &RemoteError) {
    assert!(matches!(error.problem, RemoteProblem::Changed { .. }), "{error}");
    assert_eq!((error.url.as_str(), error.attempts), (URL, 1), "{error}");
    assert!(error.to_string().ends_with("Open it again"), "{error}");
}

#[test]
#[ignore = "needs s3s-fs (scripts/install-deps s3s-fs), which needs Rust 1.92"]
fn an_object_that_was_replaced_is_another_one() {
    let folder = Scratch::new("s3s-fs-replaced");
    let (server, content) = store(&folder, BYTES);
    for options in both_modes() {
        let client = server.with_secret(options, SECRET).client().expect("valid options");
        for other in others(&content) {
            let file = client.open(URL).expect("it is there");
            let mut half = vec![0; BYTES / 2];
            assert_eq!(file.read(&mut half, 0), Ok(BYTES / 2));
            assert!(half == content[..BYTES / 2]);
            replace(&server, &other);
            // The rest of the object, of which the shorter one has nothing.
            assert_changed(&file.read(&mut half, (BYTES / 2) as u64).expect_err("it has changed"));
            assert_changed(&file.read(&mut half, 0).expect_err("it has changed"));
            compare(&client.open(URL).expect("it is there"), &other);
            replace(&server, &content);
        }
        let file = client.open(URL).expect("it is there");
        fs::remove_file(folder.path("buckets/one/data")).expect("it is there");
        let error = file.read(&mut [0; 10], 0).expect_err("it was removed");
        assert!(matches!(error.problem, RemoteProblem::NotFound { .. }), "{error}");
        replace(&server, &content);
    }
}

/// Reads an object by a ring through a relay, and replaces it in the middle of a piece.
fn replace_while_reading(server: &S3Server, relay: &Relay, file: &RemoteFile, other: &[u8]) -> RemoteError {
    let options = RingOptions::new().workers(2);
    let memory = HostMemory::new(options.bytes().expect("valid options"));
    let ring = Ring::new(HostDevice::new(), options, memory).expect("valid options");
    let target = DeviceTarget::new(Arc::new(BorrowedMemory::from(HostMemory::new(BYTES))));
    relay.pause_after(100_000);
    let transfer = file.pread(&ring, target, 0);
    relay.wait_until_paused();
    replace(server, other);
    relay.resume();
    let error = transfer.wait().expect_err("it has changed");
    let TransferError::Io { source, name, landed, .. } = &error else { panic!("{error}") };
    assert_eq!(name, URL);
    assert!(*landed < BYTES as u64, "{error}");
    let source = source.get_ref().and_then(|source| source.downcast_ref::<RemoteError>());
    source.unwrap_or_else(|| panic!("{error}")).clone()
}

#[test]
#[ignore = "needs s3s-fs (scripts/install-deps s3s-fs), which needs Rust 1.92"]
fn a_transfer_of_an_object_that_is_replaced_fails() {
    let folder = Scratch::new("s3s-fs-replacing");
    let (server, content) = store(&folder, BYTES);
    let relay = Relay::new(server.port());
    for options in both_modes() {
        let options = server.with_secret(options, SECRET);
        let options = options.s3("aws_endpoint", format!("http://{}", relay.host()));
        let client = options.client().expect("valid options");
        for other in others(&content) {
            let file = client.open(URL).expect("it is there");
            assert_changed(&replace_while_reading(&server, &relay, &file, &other));
            compare(&client.open(URL).expect("it is there"), &other);
            replace(&server, &content);
        }
    }
}
