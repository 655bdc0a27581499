//! Redirected requests.

use std::ops::Range;

use super::test_server::{TestAnswer, TestServer};
use super::*;

#[test]
fn a_request_follows_the_server_and_keeps_its_range() {
    let content = content(3 * PIECE);
    let target = TestServer::of_content(content.clone());
    let location = target.url("/there?signature=2");
    let server = TestServer::new(move |_| TestAnswer::new("302 Found", &[("Location", &location)], b""));
    let client = options().header("Authorization", "Bearer secret").client().expect("valid options");
    let file = client.open(&server.url("/here")).expect("it is there");
    assert!(read_by_ring(&file, 2).expect("nothing fails") == content);
    let (asked, served) = (server.requests(), target.requests());
    assert_eq!((asked.len(), served.len()), (4, 4));
    assert!(served.iter().all(|request| request.target == "/there?signature=2" && request.range().is_some()));
    // The other server gets no credentials.
    assert!(asked.iter().all(|request| request.header("authorization") == Some("Bearer secret")));
    assert!(served.iter().all(|request| request.header("authorization").is_none()));
    // Nor the address of the request, which may be signed.
    assert!(served.iter().all(|request| request.header("referer").is_none()));
}

#[test]
fn a_later_request_follows_the_server_too() {
    let content = content(3 * PIECE);
    let target = TestServer::of_content(content.clone());
    let (location, sent) = (target.url("/there"), content.clone());
    let server = TestServer::new(move |request| match request.range() {
        Some(Range { start: 0, end: 1 }) => TestAnswer::partial(&sent, request),
        _ => TestAnswer::new("307 x", &[("Location", &location)], b"a page"),
    });
    for options in [options(), options().mode(reactors(1, 2))] {
        let client = options.header("Authorization", "Bearer secret").attempts(1).client();
        let file = client.expect("valid options").open(&server.url("/here")).expect("it is there");
        assert!(read_by_ring(&file, 1).expect("nothing fails") == content);
    }
    let served = target.requests();
    assert!(served.iter().all(|request| request.range().is_some()));
    assert!(served.iter().all(|request| request.header("authorization").is_none()));
}

#[test]
fn a_loop_of_redirects_is_an_error() {
    let server = TestServer::new(|request| {
        TestAnswer::new("307 x", &[("Location", &format!("/{}?token=3", request.number))], b"")
    });
    let error = RemoteFile::open(&server.url("/f")).expect_err("it never ends");
    assert!(matches!(error.problem, RemoteProblem::Redirect { .. }), "{error}");
    assert!(error.attempts == 1 && !error.to_string().contains("token"), "{error}");
}
