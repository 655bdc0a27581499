//! Servers with TLS that break the rules of TLS or HTTP.

use std::sync::atomic::{AtomicUsize, Ordering};

use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::test_server::{AfterAnswer, TestAnswer, TestRequest, TestServer};
use super::*;

/// A certificate for localhost and the addresses of the loopback interface, which is its own
/// authority. `openssl req -x509 -newkey ec` made it, valid for 100 years.
const CERTIFICATE: &[u8] = include_bytes!("localhost.pem");
/// The key of the certificate, which protects nothing.
const KEY: &[u8] = include_bytes!("localhost.key");

/// The versions of TLS.
const VERSIONS: [&rustls::SupportedProtocolVersion; 2] = [&rustls::version::TLS12, &rustls::version::TLS13];

const BYTES: usize = 100_000;

fn settings(version: &'static rustls::SupportedProtocolVersion) -> ServerConfig {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let certificate = CertificateDer::from_pem_slice(CERTIFICATE).expect("a certificate");
    let key = PrivateKeyDer::from_pem_slice(KEY).expect("a key");
    let builder = ServerConfig::builder_with_provider(provider).with_protocol_versions(&[version]);
    let builder = builder.expect("a version of the provider").with_no_client_auth();
    let mut settings = builder.with_single_cert(vec![certificate], key).expect("the key of the certificate");
    settings.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    settings
}

/// Serves an object. `answer` answers the requests after those of opening, counted from 1 on.
fn server(
    version: &'static rustls::SupportedProtocolVersion,
    answer: impl Fn(usize, TestAnswer) -> TestAnswer + Send + Sync + 'static,
) -> (TestServer, Vec<u8>) {
    let (sent, reads) = (content(BYTES), AtomicUsize::new(0));
    let answer = move |request: &TestRequest| {
        let right = TestAnswer::partial(&sent, request);
        let is_opening = request.range() == Some(0..1);
        if is_opening { right } else { answer(reads.fetch_add(1, Ordering::Relaxed) + 1, right) }
    };
    (TestServer::with_tls(answer, settings(version)), content(BYTES))
}

/// Opens the object for requests by each client, in each mode.
fn open(server: &TestServer, attempts: u32) -> impl Iterator<Item = RemoteFile> {
    let options =
        both_clients().into_iter().flat_map(|options| [options.clone(), options.mode(reactors(1, 2))]);
    options.map(move |options| {
        let client = options.attempts(attempts).certificates(CERTIFICATE).client().expect("valid options");
        client.open(&server.url("/f")).expect("it is there")
    })
}

fn read(file: &RemoteFile) -> Result<Vec<u8>, RemoteError> {
    let mut bytes = vec![0; BYTES];
    file.read(&mut bytes, 0).map(|_| bytes)
}

#[test]
fn an_object_is_read_through_the_same_connection_again() {
    for version in VERSIONS {
        let (server, content) = server(version, |_, right| right);
        for file in open(&server, 1) {
            let before = server.connections();
            for _ in 0..5 {
                assert!(read(&file).expect("nothing fails") == content);
            }
            assert!(server.connections() <= before + 1, "{version:?}: {}", server.connections());
        }
    }
}

#[test]
fn addresses_and_names_are_those_of_the_certificate() {
    for version in VERSIONS {
        let (server, content) = server(version, |_, right| right);
        let port = server.address().port();
        for options in both_clients() {
            let client = options.attempts(1).certificates(CERTIFICATE).client().expect("valid options");
            for host in ["127.0.0.1", "localhost", "LOCALHOST"] {
                let file = client.open(&format!("https://{host}:{port}/f")).expect("it is there");
                assert!(read(&file).expect("the certificate has the name") == content);
            }
            let other = client.open(&format!("https://127.0.0.2:{port}/f"));
            let other = other.expect_err("the certificate has another address");
            assert!(
                matches!(other.problem, RemoteProblem::Connect { .. } | RemoteProblem::Tls { .. }),
                "{other}"
            );
        }
    }
}

#[test]
fn a_body_that_ends_without_notice_is_cut() {
    // The end of the connection is the end of the body, so only the missing bytes tell a cut.
    let headers = [("Content-Range", "bytes 0-99999/100000")];
    for version in VERSIONS {
        for after in [AfterAnswer::Close, AfterAnswer::CloseNotify] {
            let (server, _) = server(version, move |_, right| {
                let body = right.bytes[right.bytes.len() - BYTES..].to_vec();
                TestAnswer::of("206 Partial Content", &headers, &body).cut(1000, after)
            });
            for file in open(&server, 1) {
                let error = read(&file).expect_err("1000 bytes are missing");
                assert_eq!(cut_after(&error), Some(BYTES as u64 - 1000), "{version:?}, {after:?}: {error}");
            }
        }
    }
}

#[test]
fn a_body_until_the_end_of_the_connection_is_read() {
    let headers = [("Content-Range", "bytes 0-99999/100000")];
    for version in VERSIONS {
        let (server, content) = server(version, move |_, right| {
            let body = right.bytes[right.bytes.len() - BYTES..].to_vec();
            TestAnswer::of("206 Partial Content", &headers, &body).then(AfterAnswer::CloseNotify)
        });
        for file in open(&server, 1) {
            assert!(read(&file).expect("all bytes arrive") == content);
        }
    }
}

#[test]
fn the_bytes_before_a_changed_record_count_once() {
    for version in VERSIONS {
        let (server, content) = server(version, |number, right| match number % 2 {
            1 => right.cut(30_000, AfterAnswer::ChangedRecord),
            _ => right,
        });
        for (client, file) in open(&server, 2).enumerate() {
            assert!(read(&file).expect("the second attempt succeeds") == content, "{version:?}, {client}");
            let requests = server.requests();
            let last = requests.last().and_then(TestRequest::range).expect("a range");
            // The library may drop bytes that it has received.
            let is_library = client >= 2;
            assert!(last.start == 70_000 || is_library && last.start < 70_000, "{version:?}: {last:?}");
            assert_eq!(requests.len(), 3 * (client + 1), "{version:?}");
        }
    }
}

#[test]
fn bytes_that_were_not_requested_are_no_answer() {
    for version in VERSIONS {
        let (server, content) = server(version, |_, right| {
            let other = right.bytes.iter().map(|byte| byte ^ u8::from(*byte > 127)).collect::<Vec<_>>();
            TestAnswer { bytes: [right.bytes, other].concat(), after: AfterAnswer::Keep }
        });
        for file in open(&server, 1).take(2) {
            for _ in 0..5 {
                assert!(read(&file).expect("it is read") == content, "{version:?}");
            }
        }
    }
}

#[test]
fn a_record_that_was_not_requested_ends_the_use_of_the_connection() {
    for version in VERSIONS {
        for missing in [0, 10] {
            let after = AfterAnswer::UnrequestedRecord { missing };
            let (server, content) = server(version, move |_, right| right.then(after));
            for file in open(&server, 1).take(2) {
                let before = server.connections();
                for _ in 0..3 {
                    assert!(read(&file).expect("it is read") == content, "{version:?}, {missing}");
                }
                assert_eq!(server.connections(), before + 3, "{version:?}, {missing}");
            }
        }
    }
}

#[test]
fn a_session_that_the_server_has_ended_is_not_used_again() {
    for version in VERSIONS {
        for after in [AfterAnswer::CloseNotify, AfterAnswer::StallAfterNotify] {
            let (server, content) = server(version, move |_, right| right.then(after));
            // A short answer arrives together with the notice.
            for (file, bytes) in open(&server, 1).flat_map(|file| [(file.clone(), 100), (file, BYTES)]) {
                for _ in 0..3 {
                    let mut read = vec![0; bytes];
                    file.read(&mut read, 0).expect("a new connection is made");
                    assert!(read == content[..bytes], "{version:?}, {after:?}");
                }
            }
        }
    }
}
