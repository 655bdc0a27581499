//! Answers that are not the requested range: one clear error each, without another attempt.

use super::test_server::{TestAnswer, TestRequest, TestServer};
use super::*;

const BYTES: usize = 1000;

/// Opens an object of which the second request is answered by `answer`, and reads bytes 100 to 300.
/// Returns the problem, which is the same for both clients, and checks that there was no third
/// request.
#[track_caller]
fn problem_of(answer: impl Fn(&TestRequest, &[u8]) -> TestAnswer + Send + Sync + 'static) -> RemoteProblem {
    let answer = Arc::new(answer);
    let [own, library] = both_clients().map(|options| problem_with(options, answer.clone()));
    assert_eq!(own, library);
    own
}

#[track_caller]
fn problem_with(
    options: RemoteOptions,
    answer: Arc<impl Fn(&TestRequest, &[u8]) -> TestAnswer + Send + Sync + 'static>,
) -> RemoteProblem {
    let content = content(BYTES);
    let server = TestServer::new(move |request| match request.number {
        0 => TestAnswer::partial_with(&content, request, &[("ETag", "\"one\""), ("Last-Modified", "then")]),
        _ => answer(request, &content),
    });
    let file = options.client().expect("valid options").open(&server.url("/f?key=1")).expect("it is there");
    let error = read_error(&file, 100, 200);
    assert_eq!((error.range.clone(), error.attempts), (Some(100..300), 1), "{error}");
    assert_eq!(error.url, server.url("/f"));
    let text = error.to_string();
    assert!(!text.contains("key") && !text.contains('\n'), "{text}");
    assert_eq!(server.requests().len(), 2, "{error}");
    error.problem
}

/// Answers with a range that has another header than the requested one.
fn with_range(stated: &'static str, bytes: usize) -> RemoteProblem {
    problem_of(move |_, content| {
        TestAnswer::new("206 Partial Content", &[("Content-Range", stated)], &content[..bytes])
    })
}

#[test]
fn the_whole_object_is_no_range() {
    assert_eq!(problem_of(|_, content| TestAnswer::new("200 OK", &[], content)), RemoteProblem::NoRanges);
    // Nor are as many bytes without the header of a range.
    assert_eq!(
        problem_of(|_, content| TestAnswer::new("200 OK", &[], &content[100..300])),
        RemoteProblem::NoRanges
    );
}

#[test]
fn another_range_is_an_error() {
    let others = [
        ("bytes 0-199/1000", 200),
        ("bytes 101-299/1000", 199),
        ("bytes 100-300/1000", 201),
        ("bytes 100-299/1000", 199),
        ("bytes 100-299/1000", 201),
        ("bytes 100-299", 200),
        ("bytes */1000", 200),
        ("lines 100-299/1000", 200),
    ];
    for (stated, bytes) in others {
        let problem = with_range(stated, bytes);
        assert!(
            matches!(&problem, RemoteProblem::OtherRange { stated: said } if said.contains(stated)),
            "{problem}"
        );
    }
    let none = problem_of(|_, content| TestAnswer::new("206 Partial Content", &[], &content[100..300]));
    assert!(matches!(&none, RemoteProblem::OtherRange { stated } if stated == "it states none"), "{none}");
}

#[test]
fn more_bytes_than_stated_are_an_error() {
    for more in [1, 5000] {
        let problem = problem_of(move |_, content| {
            let body = [&content[100..300], &vec![0; more]].concat();
            let chunk = format!("{:x}\r\n", body.len());
            let body = [chunk.as_bytes(), &body, b"\r\n0\r\n\r\n"].concat();
            let headers = [("Transfer-Encoding", "chunked"), ("Content-Range", "bytes 100-299/1000")];
            TestAnswer::of("206 Partial Content", &headers, &body)
        });
        assert_eq!(problem, RemoteProblem::TooLong);
    }
    // Also in a chunk of their own.
    let problem = problem_of(|_, content| {
        let body = [b"c8\r\n", &content[100..300], b"\r\n1\r\nx\r\n0\r\n\r\n"].concat();
        let headers = [("Transfer-Encoding", "chunked"), ("Content-Range", "bytes 100-299/1000")];
        TestAnswer::of("206 Partial Content", &headers, &body)
    });
    assert_eq!(problem, RemoteProblem::TooLong);
}

#[test]
fn a_compressed_body_is_an_error() {
    let problem = problem_of(|request, content| {
        TestAnswer::partial_with(content, request, &[("Content-Encoding", "gzip")])
    });
    assert_eq!(problem, RemoteProblem::Encoded { encoding: "gzip".into() });
}

#[test]
fn an_object_that_has_changed_is_an_error() {
    let changes: [(&[(&str, &str)], &str); 2] = [
        (&[("ETag", "\"two\""), ("Last-Modified", "then")], "its ETag was \"one\" and is \"two\""),
        (&[("Last-Modified", "now")], "its time of the last change was then and is now"),
    ];
    for (headers, expected) in changes {
        let problem = problem_of(move |request, content| TestAnswer::partial_with(content, request, headers));
        assert_eq!(problem, RemoteProblem::Changed { what: expected.into() });
    }
    let what = "it had 1000 bytes and has 1001".to_owned();
    assert_eq!(with_range("bytes 100-299/1001", 200), RemoteProblem::Changed { what });
    let shorter = problem_of(|_, _| {
        TestAnswer::new("416 Range Not Satisfiable", &[("Content-Range", "bytes */50")], b"")
    });
    assert_eq!(shorter, RemoteProblem::Changed { what: "it had 1000 bytes and has 50".into() });
    // Servers of S3 may state a reason instead of the length.
    let xml = b"<Error><Code>InvalidRange</Code></Error>";
    let shorter = problem_of(|_, _| TestAnswer::new("416 Range Not Satisfiable", &[], xml));
    let what = "it had 1000 bytes, and the range is beyond its end now (status 416)".to_owned();
    assert_eq!(shorter, RemoteProblem::Changed { what });
    // The object is as long as before, so the server has no reason to refuse.
    let same = problem_of(|_, _| {
        TestAnswer::new("416 Range Not Satisfiable", &[("Content-Range", "bytes */1000")], b"")
    });
    assert_eq!(same, RemoteProblem::Status { status: 416, why: String::new() });
}

#[test]
fn a_refusal_is_an_error_with_the_reason_of_the_server() {
    let xml = b"<?xml version=\"1.0\"?><Error><Code>SignatureDoesNotMatch</Code><Message>m</Message></Error>";
    let denied = problem_of(|_, _| TestAnswer::new("403 Forbidden", &[], xml));
    assert_eq!(denied, RemoteProblem::Denied { why: "status 403, SignatureDoesNotMatch".into() });
    assert!(denied.to_string().contains("Check the credentials"), "{denied}");
    let unknown = problem_of(|_, _| TestAnswer::new("401 Unauthorized", &[], b"who?"));
    assert_eq!(unknown, RemoteProblem::Denied { why: "status 401".into() });
    let xml = b"<Error><Code>ExpiredToken</Code></Error>";
    let expired = problem_of(|_, _| TestAnswer::new("400 Bad Request", &[], xml));
    assert_eq!(expired, RemoteProblem::Denied { why: "status 400, ExpiredToken".into() });
    let gone = problem_of(|_, _| TestAnswer::new("404 Not Found", &[], b""));
    assert_eq!(gone, RemoteProblem::NotFound { why: "status 404".into() });
    // A page instead of the object, as from a portal.
    let teapot = problem_of(|_, _| TestAnswer::new("418 I'm a teapot", &[], b"<html>"));
    assert_eq!(teapot, RemoteProblem::Status { status: 418, why: String::new() });
}

#[test]
fn a_length_that_is_unknown_is_an_error_of_opening() {
    let answers: [(TestAnswer, RemoteProblem); 3] = [
        (
            TestAnswer::new("206 Partial Content", &[("Content-Range", "bytes 0-0/*")], b"x"),
            RemoteProblem::NoLength,
        ),
        (TestAnswer::new("200 OK", &[], b"the whole object"), RemoteProblem::NoRanges),
        (TestAnswer::new("404 Not Found", &[], b""), RemoteProblem::NotFound { why: "status 404".into() }),
    ];
    for (answer, expected) in answers {
        let bytes = answer.bytes;
        let server = TestServer::new(move |_| TestAnswer {
            bytes: bytes.clone(),
            after: super::test_server::AfterAnswer::Keep,
        });
        let error = RemoteFile::open(&server.url("/f")).expect_err("its length is not known");
        assert_eq!((error.problem, server.requests().len()), (expected, 1));
    }
}
