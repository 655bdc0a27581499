//! An S3 server that is killed while an object is read, and comes back or does not.

use std::thread;
use std::time::Duration;

use hostbuf_staging::{RemoteError, RemoteFile, RemoteOptions, RemoteProblem, RequestMode};
use hostbuf_tests::Scratch;

use super::relay::{Relay, RelayedRequest};
use super::s3_server::{S3Server, SECRET};
use super::stored_object::{URL, store};
use super::{both_modes, compare};

/// More than what the sockets between a server and the relay hold of one answer, for each request.
const BYTES: usize = 32 << 20;

/// Returns options for each way to make requests: one for the whole object, and four for its parts.
fn options() -> [RemoteOptions; 2] {
    [RequestMode::Easy, RequestMode::reactors(2, 2)]
        .map(|mode| RemoteOptions::new().mode(mode).backoff(Duration::from_millis(1)))
}

fn open(server: &S3Server, relay: &Relay, options: RemoteOptions) -> RemoteFile {
    let options = server.with_secret(options, SECRET);
    let options = options.s3("aws_endpoint", format!("http://{}", relay.host()));
    options.client().expect("valid options").open(URL).expect("it is there")
}

/// Reads an object while `outage` happens in the middle of the answers.
fn read(file: &RemoteFile, relay: &Relay, outage: impl FnOnce()) -> Result<Vec<u8>, RemoteError> {
    relay.pause_after(1 << 20);
    thread::scope(|scope| {
        let reading = scope.spawn(|| {
            let mut bytes = vec![0; BYTES];
            file.read(&mut bytes, 0).map(|read| bytes[..read].to_vec())
        });
        relay.wait_until_paused();
        outage();
        relay.resume();
        reading.join().expect("no thread panics")
    })
}

/// Returns the requests whose answers were cut after at least one byte.
fn cut(requests: &[RelayedRequest]) -> Vec<(usize, &RelayedRequest)> {
    let is_cut =
        |request: &RelayedRequest| request.sent > 0 && request.sent < request.range.end - request.range.start;
    requests.iter().enumerate().filter(|(_, request)| is_cut(request)).collect()
}

#[test]
#[ignore = "needs s3s-fs (scripts/install-deps s3s-fs), which needs Rust 1.92"]
fn a_read_goes_on_at_the_missing_byte_after_a_restart() {
    let folder = Scratch::new("s3s-fs-restarted");
    let (mut server, content) = store(&folder, BYTES);
    for options in options() {
        let relay = Relay::new(server.port());
        let file = open(&server, &relay, options);
        let bytes = read(&file, &relay, || {
            server.kill();
            server.restart();
        });
        assert!(bytes.expect("a later attempt succeeds") == content);
        let requests = relay.requests();
        let cut = cut(&requests);
        assert!(!cut.is_empty(), "{requests:?}");
        for (number, RelayedRequest { range, sent }) in cut {
            let missing = range.start + sent..range.end;
            assert!(requests[number..].iter().any(|later| later.range == missing), "{requests:?}");
        }
        let asked = |request: &RelayedRequest| request.range.end - request.range.start;
        let all: u64 = requests[1..].iter().map(|request| request.sent).sum();
        assert_eq!(all, BYTES as u64, "no byte was sent twice: {requests:?}");
        assert!(requests.iter().all(|request| request.sent <= asked(request)), "{requests:?}");
    }
}

#[test]
#[ignore = "needs s3s-fs (scripts/install-deps s3s-fs), which needs Rust 1.92"]
fn a_server_that_is_killed_in_the_middle_of_an_answer_is_an_error() {
    let folder = Scratch::new("s3s-fs-killed");
    let (mut server, content) = store(&folder, BYTES);
    for options in options() {
        let relay = Relay::new(server.port());
        let file = open(&server, &relay, options.attempts(3));
        let error = read(&file, &relay, || server.kill()).expect_err("the server is gone");
        let requests = relay.requests();
        let of_range = |request: &&RelayedRequest| Some(&request.range) == error.range.as_ref();
        let first = requests.iter().find(of_range).unwrap_or_else(|| panic!("{error}: {requests:?}"));
        let RemoteProblem::Cut { received, .. } = error.problem else { panic!("{error}") };
        assert_eq!(received, first.sent, "{error}: {requests:?}");
        assert_eq!((error.url.as_str(), error.attempts), (URL, 3), "{error}");
        assert!(error.to_string().ends_with("(3 attempts in a row have failed)"), "{error}");
        // The same file is read again once the server is there.
        server.restart();
        compare(&file, &content);
    }
}

#[test]
#[ignore = "needs s3s-fs (scripts/install-deps s3s-fs), which needs Rust 1.92"]
fn a_server_that_is_killed_between_reads_is_an_error() {
    let folder = Scratch::new("s3s-fs-gone");
    let (mut server, content) = store(&folder, BYTES);
    for options in both_modes() {
        let options = server.with_secret(options.attempts(3).backoff(Duration::from_millis(1)), SECRET);
        let client = options.client().expect("valid options");
        let file = client.open(URL).expect("it is there");
        let mut bytes = vec![0; 1 << 20];
        assert_eq!(file.read(&mut bytes, 5), Ok(1 << 20));
        assert!(bytes == content[5..][..1 << 20]);
        server.kill();
        let error = file.read(&mut bytes, 7).expect_err("the server is gone");
        let later = client.open(URL).expect_err("the server is gone");
        for error in [error, later] {
            assert!(matches!(error.problem, RemoteProblem::Connect { .. }), "{error}");
            assert_eq!((error.url.as_str(), error.attempts), (URL, 3), "{error}");
            assert!(error.to_string().ends_with("(3 attempts in a row have failed)"), "{error}");
        }
        server.restart();
        compare(&file, &content);
    }
}
