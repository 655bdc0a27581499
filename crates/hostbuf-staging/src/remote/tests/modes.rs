//! The threads that make requests.

use std::sync::Barrier;

use super::test_server::{TestAnswer, TestServer};
use super::*;

/// Serves an object. Answers come when `together` requests have arrived, except the first one.
fn waiting_server(content: Vec<u8>, together: usize) -> TestServer {
    let barrier = Barrier::new(together);
    TestServer::new(move |request| {
        if request.number > 0 {
            barrier.wait();
        }
        TestAnswer::partial(&content, request)
    })
}

#[test]
fn each_thread_that_reads_makes_a_request() {
    let content = content(8 * PIECE);
    let server = waiting_server(content.clone(), 4);
    let client = options().attempts(1).client().expect("valid options");
    let file = client.open(&server.url("/f")).expect("it is there");
    assert!(read_by_ring(&file, 4).expect("nothing fails") == content);
}

#[test]
fn reactors_make_many_requests_for_one_thread() {
    // A read of 8 MiB is divided into 8 requests.
    let content = content(8 << 20);
    let server = waiting_server(content.clone(), 8);
    let client = options().attempts(1).mode(reactors(2, 4)).client().expect("valid options");
    let file = client.open(&server.url("/f")).expect("it is there");
    let mut bytes = vec![0; content.len()];
    file.read(&mut bytes, 0).expect("nothing fails");
    assert!(bytes == content);
    assert_eq!(server.requests().len(), 9);
    // Several threads, with more parts than requests at a time.
    let server = TestServer::of_content(content.clone());
    let file = client.open(&server.url("/f")).expect("it is there");
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let mut bytes = vec![0; content.len()];
                file.read(&mut bytes, 0).expect("nothing fails");
                assert!(bytes == content);
            });
        }
    });
    assert!(server.connections() <= 9, "{} connections", server.connections());
}

#[test]
fn a_failed_part_fails_the_read() {
    let sent = content(8 << 20);
    let server = TestServer::new(move |request| match request.range() {
        Some(range) if range.start == 4 << 20 => TestAnswer::new("403 x", &[], b""),
        _ => TestAnswer::partial(&sent, request),
    });
    let client = options().mode(reactors(1, 8)).client().expect("valid options");
    let file = client.open(&server.url("/f")).expect("it is there");
    let error = read_error(&file, 0, 8 << 20);
    let denied = RemoteProblem::Denied { why: "status 403".into() };
    assert_eq!((error.problem, error.range), (denied, Some(4 << 20..5 << 20)));
    // The client goes on.
    file.read(&mut [0; 1000], 5).expect("nothing fails");
}

#[test]
fn a_runtime_of_the_program_is_no_obstacle() {
    let content = content(1 << 20);
    for mode in [RequestMode::Easy, reactors(1, 2)] {
        let server = TestServer::of_content(content.clone());
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(async {
            let client = options().mode(mode).client().expect("valid options");
            let file = client.open(&server.url("/f")).expect("it is there");
            let mut bytes = vec![0; content.len()];
            file.read(&mut bytes, 0).expect("nothing fails");
            assert!(bytes == content);
        });
    }
}
