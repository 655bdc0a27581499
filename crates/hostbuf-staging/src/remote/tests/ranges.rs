//! Ranges of objects.

use super::test_server::{AfterAnswer, TestAnswer, TestServer};
use super::*;

#[test]
fn a_ring_reads_an_object_by_ranges() {
    let content = content(40 * PIECE + 77);
    for mode in [RequestMode::Easy, reactors(2, 3)] {
        let server = TestServer::of_content(content.clone());
        let client = options().mode(mode).client().expect("valid options");
        let file = client.open_http(&server.url("/a%20b?c=d")).expect("it is there");
        assert_eq!(file.bytes(), content.len() as u64);
        assert!(read_by_ring(&file, 4).expect("nothing fails") == content);
        let requests = server.requests();
        // The first one asks for the length.
        assert_eq!(requests[0].range(), Some(0..1));
        let mut ranges: Vec<_> =
            requests[1..].iter().map(|request| request.range().expect("a range")).collect();
        ranges.sort_by_key(|range| range.start);
        assert!(ranges.windows(2).all(|pair| pair[0].end == pair[1].start), "{ranges:?}");
        assert_eq!((ranges.len(), ranges[40].end), (41, content.len() as u64));
        assert!(requests.iter().all(|request| request.target == "/a%20b?c=d"));
        assert!(requests.iter().all(|request| request.header("accept-encoding") == Some("identity")));
        // Connections are used again.
        assert!(server.connections() < 12, "{} connections", server.connections());
    }
}

#[test]
fn a_read_ends_at_the_end_of_the_object() {
    let content = content(1000);
    let server = TestServer::of_content(content.clone());
    let file = RemoteFile::open(&server.url("/f")).expect("it is there");
    let mut bytes = [0; 50];
    assert_eq!(file.read(&mut bytes, 970).expect("it is read"), 30);
    assert!(bytes[..30] == content[970..]);
    for offset in [1000, 1001, u64::MAX] {
        assert_eq!(file.read(&mut bytes, offset).expect("there is nothing to read"), 0);
    }
    assert_eq!(file.read(&mut [], 5).expect("there is nothing to read"), 0);
    assert_eq!(server.requests().len(), 2);
}

#[test]
fn an_empty_object_has_no_bytes() {
    let whole = TestServer::new(|_| TestAnswer::new("200 OK", &[], b""));
    let bare = TestServer::new(|request| match request.range() {
        Some(_) => TestAnswer::new("416 Range Not Satisfiable", &[], b""),
        None => TestAnswer::new("200 OK", &[], b""),
    });
    for (server, requests) in [(TestServer::of_content(Vec::new()), 1), (whole, 1), (bare, 2)] {
        let file = RemoteFile::open(&server.url("/empty")).expect("it is there");
        assert_eq!((file.bytes(), file.read(&mut [0; 9], 0)), (0, Ok(0)));
        assert_eq!(server.requests().len(), requests);
    }
}

/// Encodes a body in chunks of `length` bytes, with the last one, which has none.
fn chunked(body: &[u8], length: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    for chunk in body.chunks(length) {
        bytes.extend(format!("{:x}\r\n", chunk.len()).into_bytes());
        bytes.extend(chunk);
        bytes.extend(b"\r\n");
    }
    bytes.extend(b"0\r\n\r\n");
    bytes
}

#[test]
fn bodies_without_a_length_are_read() {
    let content = content(5 * PIECE);
    let sent = content.clone();
    let server = TestServer::new(move |request| {
        let range = request.range().expect("a range");
        let stated = format!("bytes {}-{}/{}", range.start, range.end - 1, sent.len());
        let body = chunked(&sent[range.start as usize..range.end as usize], 1000);
        let headers = [("Transfer-Encoding", "chunked"), ("Content-Range", stated.as_str())];
        TestAnswer::of("206 Partial Content", &headers, &body)
    });
    let file = options().client().expect("valid options").open(&server.url("/f")).expect("it is there");
    assert!(read_by_ring(&file, 1).expect("nothing fails") == content);
    // The end of each body was received.
    assert!(server.connections() <= 2, "{} connections", server.connections());
}

#[test]
fn a_server_may_send_the_beginning_of_a_range() {
    let content = content(10_000);
    let sent = content.clone();
    let server = TestServer::new(move |request| {
        let mut request = request.clone();
        let range = request.range().expect("a range");
        let shorter = format!("bytes={}-{}", range.start, range.end.min(range.start + 3000) - 1);
        request.headers.retain(|(name, _)| name != "range");
        request.headers.push(("range".into(), shorter));
        TestAnswer::partial(&sent, &request)
    });
    let file = RemoteFile::open(&server.url("/f")).expect("it is there");
    let mut bytes = vec![0; 10_000];
    assert_eq!(file.read(&mut bytes, 0).expect("nothing fails"), 10_000);
    assert!(bytes == content);
    let starts: Vec<_> = server.requests()[1..].iter().map(|r| r.range().expect("a range").start).collect();
    assert_eq!(starts, [0, 3000, 6000, 9000]);
}

#[test]
fn the_whole_object_answers_the_range_of_all_its_bytes() {
    let content = content(1000);
    let sent = content.clone();
    let server = TestServer::new(move |request| match request.number {
        0 => TestAnswer::partial(&sent, request),
        _ => TestAnswer::new("200 OK", &[], &sent).then(AfterAnswer::Close),
    });
    let file = RemoteFile::open(&server.url("/f")).expect("it is there");
    let mut bytes = vec![0; 1000];
    file.read(&mut bytes, 0).expect("it is read");
    assert!(bytes == content);
    assert_eq!(read_error(&file, 0, 999).problem, RemoteProblem::NoRanges);
}
