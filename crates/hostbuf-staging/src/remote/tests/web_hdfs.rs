//! WebHDFS, by a minimal test server: a name node that redirects to a data node. It answers
//! GETFILESTATUS and OPEN with offset and length, as the documentation of Hadoop 3 describes them.
//! No server of Hadoop was tried.

use super::test_server::{AfterAnswer, TestAnswer, TestRequest, TestServer};
use super::*;

/// Returns the parameters of a request.
fn parameter(request: &TestRequest, name: &str) -> Option<String> {
    let (_, query) = request.target.split_once('?')?;
    let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    pairs.into_iter().find(|(other, _)| *other == name).map(|(_, value)| value.to_owned())
}

fn exception(class: &str) -> Vec<u8> {
    format!(r#"{{"RemoteException":{{"exception":"{class}","javaClassName":"x.{class}","message":"of the test"}}}}"#)
        .into_bytes()
}

/// Starts a data node, to which the name node redirects.
fn data_node(content: Vec<u8>) -> TestServer {
    TestServer::new(move |request| {
        let number = |name| parameter(request, name).and_then(|text| text.parse().ok()).unwrap_or(0usize);
        let start = number("offset").min(content.len());
        let end = (start + number("length")).min(content.len());
        let answer =
            TestAnswer::new("200 OK", &[("Content-Type", "application/octet-stream")], &content[start..end]);
        // The second answer is cut.
        if request.number == 1 && end > start { answer.cut(100, AfterAnswer::Close) } else { answer }
    })
}

/// Starts a name node with the file /user/me/data.
fn name_node(bytes: usize, data_node: &TestServer) -> TestServer {
    let data = data_node.url("");
    TestServer::new(move |request| {
        let (path, query) = request.target.split_once('?').expect("an operation");
        match (path, parameter(request, "op").as_deref(), parameter(request, "user.name").as_deref()) {
            (_, _, Some("mallory")) => {
                TestAnswer::new("403 Forbidden", &[], &exception("AccessControlException"))
            }
            ("/webhdfs/v1/user/me", Some("GETFILESTATUS"), _) => {
                TestAnswer::new("200 OK", &[], br#"{"FileStatus":{"type":"DIRECTORY","length":0}}"#)
            }
            ("/webhdfs/v1/user/me/data", Some("GETFILESTATUS"), _) if request.number == 0 => {
                TestAnswer::new("403 Forbidden", &[], &exception("StandbyException"))
            }
            ("/webhdfs/v1/user/me/data", Some("GETFILESTATUS"), _) => {
                let status =
                    format!(r#"{{"FileStatus":{{"type":"FILE","length":{bytes},"modificationTime":7}}}}"#);
                TestAnswer::new("200 OK", &[], status.as_bytes())
            }
            ("/webhdfs/v1/user/me/data", Some("OPEN"), _) => {
                let location = format!("{data}{path}?{query}&namenoderpcaddress=x");
                TestAnswer::new("307 Temporary Redirect", &[("Location", &location)], b"")
            }
            _ => TestAnswer::new("404 Not Found", &[], &exception("FileNotFoundException")),
        }
    })
}

fn address(server: &TestServer, path: &str) -> String {
    format!("webhdfs://{}{path}", server.address())
}

#[test]
fn a_file_is_read_through_redirects() {
    let content = content(10 * PIECE + 11);
    let data = data_node(content.clone());
    let name = name_node(content.len(), &data);
    let client = options().client().expect("valid options");
    let file = client.open_webhdfs(&address(&name, "/user/me/data?user.name=me")).expect("it is there");
    assert_eq!((file.bytes(), file.url()), (content.len() as u64, &*address(&name, "/user/me/data")));
    assert!(read_by_ring(&file, 1).expect("a later attempt succeeds") == content);
    let served = data.requests();
    // One more for the answer that was cut, from the missing byte on.
    assert_eq!(served.len(), 12);
    let second = (parameter(&served[2], "offset"), parameter(&served[2], "length"));
    assert_eq!(second, (Some((2 * PIECE - 100).to_string()), Some("100".into())));
    assert!(served.iter().all(|request| parameter(request, "user.name").as_deref() == Some("me")));
}

#[test]
fn errors_have_the_reason_of_the_server() {
    let data = data_node(Vec::new());
    let name = name_node(0, &data);
    let client = options().client().expect("valid options");
    let error = |path: &str| client.open(&address(&name, path)).expect_err("it is refused").problem;
    let missing = "status 404, FileNotFoundException: of the test".to_owned();
    assert_eq!(error("/none"), RemoteProblem::NotFound { why: missing });
    let denied = "status 403, AccessControlException: of the test".to_owned();
    assert_eq!(error("/user/me/data?user.name=mallory"), RemoteProblem::Denied { why: denied });
    assert_eq!(error("/user/me"), RemoteProblem::NotFound { why: "it is a folder".into() });
    assert_eq!(client.open(&address(&name, "/user/me/data")).expect("it is there").bytes(), 0);
}

#[test]
fn a_file_that_became_shorter_is_an_error() {
    let data = data_node(content(500));
    let name = name_node(1000, &data);
    let client = options().attempts(2).client().expect("valid options");
    let file = client.open(&address(&name, "/user/me/data")).expect("it is there");
    file.read(&mut [0; 500], 0).expect("these bytes are there");
    let error = read_error(&file, 600, 100);
    assert!(matches!(error.problem, RemoteProblem::OtherRange { .. }), "{error}");
}

#[test]
fn a_page_instead_of_the_bytes_is_an_error() {
    for (kind, bytes) in [("text/html; charset=utf-8", 3000), ("application/octet-stream", 3000)] {
        let data = TestServer::new(move |_| {
            TestAnswer::new("200 OK", &[("Content-Type", kind)], &vec![b'<'; bytes])
        });
        let name = name_node(10_000, &data);
        let client = options().client().expect("valid options");
        let file = client.open(&address(&name, "/user/me/data")).expect("it is there");
        for bytes in [3000, 10_000] {
            let read = file.read(&mut vec![0; bytes], 0);
            // As many bytes of the right type cannot be told from those of the file.
            if bytes == 3000 && kind.starts_with("application") {
                assert_eq!(read, Ok(3000));
                continue;
            }
            let error = read.expect_err("it is a page");
            assert!(
                matches!(error.problem, RemoteProblem::OtherRange { .. }) && error.attempts == 1,
                "{error}"
            );
        }
    }
}
