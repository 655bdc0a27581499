//! Connections that wait for a request.

use std::net::{Ipv4Addr, TcpListener, TcpStream};

use super::super::connection_pool::ConnectionPool;
use super::super::http_connection::HttpConnection;
use super::test_server::{AfterAnswer, TestAnswer, TestServer};
use super::*;

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}

/// Returns a connection and the server's end of it.
fn connection() -> (HttpConnection, TcpStream) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    let client = TcpStream::connect(listener.local_addr().expect("it is bound")).expect("it listens");
    client.set_nonblocking(true).expect("a socket");
    let client = tokio::net::TcpStream::from_std(client).expect("a runtime");
    (HttpConnection::new(client), listener.accept().expect("a connection").0)
}

/// Returns whether the client has closed the connection.
fn is_closed(server: &mut TcpStream) -> bool {
    server.set_nonblocking(true).expect("a socket");
    matches!(std::io::Read::read(server, &mut [0]), Ok(0))
}

#[test]
fn a_pool_closes_the_oldest_connections() {
    runtime().block_on(async {
        let pool = ConnectionPool::new(2);
        let mut servers = Vec::new();
        for origin in ["a", "b", "a"] {
            let (client, server) = connection();
            pool.keep(origin.into(), client);
            servers.push(server);
        }
        assert_eq!(pool.len(), 2);
        assert_eq!(servers.iter_mut().map(is_closed).collect::<Vec<_>>(), [true, false, false]);
        assert!(pool.take("c").is_none() && pool.len() == 2);
        assert!(pool.take("b").is_some() && pool.take("b").is_none());
        pool.close_expired(Duration::from_secs(3600));
        assert_eq!(pool.len(), 1);
        pool.close_expired(Duration::ZERO);
        assert_eq!(pool.len(), 0);
        assert!(is_closed(&mut servers[2]));
        let (client, mut server) = connection();
        pool.keep("a".into(), client);
        drop(pool);
        assert!(is_closed(&mut server));
    });
}

#[test]
fn a_connection_with_unrequested_bytes_is_not_taken() {
    runtime().block_on(async {
        let pool = ConnectionPool::new(2);
        let (client, mut server) = connection();
        pool.keep("a".into(), client);
        std::io::Write::write_all(&mut server, b"H").expect("it is connected");
        // The runtime hears of the byte.
        while pool.len() > 0
            && pool.take("a").is_some_and(|unused| {
                pool.keep("a".into(), unused);
                true
            })
        {
            tokio::task::yield_now().await;
        }
        assert_eq!(pool.len(), 0);
    });
}

#[test]
fn a_request_is_sent_at_most_twice_if_the_server_closes_connections() {
    // The server answers the first two requests, and closes all connections without an answer then.
    let sent = content(1000);
    let server = TestServer::new(move |request| match request.number {
        0 | 1 => TestAnswer::partial(&sent, request),
        _ => TestAnswer { bytes: Vec::new(), after: AfterAnswer::Close },
    });
    let client = options().attempts(1).client().expect("valid options");
    let file = client.open(&server.url("/f")).expect("it is there");
    file.read(&mut [0; 1000], 0).expect("it is read");
    let error = read_error(&file, 0, 1000);
    assert_eq!(cut_after(&error), Some(0), "{error}");
    assert_eq!(server.requests().len(), 4);
}

#[test]
fn a_request_is_not_sent_again_after_a_byte_of_its_answer() {
    let sent = content(1000);
    let server = TestServer::new(move |request| match request.number {
        0 | 1 => TestAnswer::partial(&sent, request),
        _ => TestAnswer { bytes: b"H".to_vec(), after: AfterAnswer::Close },
    });
    let client = options().attempts(1).client().expect("valid options");
    let file = client.open(&server.url("/f")).expect("it is there");
    file.read(&mut [0; 1000], 0).expect("it is read");
    let error = read_error(&file, 0, 1000);
    assert_eq!(cut_after(&error), Some(0), "{error}");
    assert_eq!(server.requests().len(), 3);
}

#[test]
fn a_body_that_was_not_received_to_its_end_ends_its_connection() {
    // A page of an error is longer than the part of it that is read.
    let (sent, page) = (content(1000), vec![b'x'; 10_000]);
    let server = TestServer::new(move |request| match request.number {
        1 => TestAnswer::new("403 Forbidden", &[], &page),
        _ => TestAnswer::partial(&sent, request),
    });
    let client = options().attempts(1).client().expect("valid options");
    let file = client.open(&server.url("/f")).expect("it is there");
    read_error(&file, 0, 1000);
    let mut bytes = vec![0; 1000];
    file.read(&mut bytes, 0).expect("it is read");
    assert!(bytes == content(1000));
    // One of the library, and two of the requests of ranges.
    assert_eq!(server.connections(), 3);
}

#[test]
fn informational_answers_precede_the_answer() {
    let sent = content(1000);
    let server = TestServer::new(move |request| {
        let right = TestAnswer::partial(&sent, request);
        let early = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n";
        TestAnswer { bytes: [&early[..], &right.bytes].concat(), after: AfterAnswer::Keep }
    });
    for options in both_clients() {
        let file = options.attempts(1).client().expect("valid options").open(&server.url("/f"));
        let mut bytes = vec![0; 1000];
        file.expect("it is there").read(&mut bytes, 0).expect("it is read");
        assert!(bytes == content(1000));
    }
}

#[test]
fn informational_answers_without_end_are_an_error() {
    let sent = content(1000);
    let server = TestServer::new(move |request| match request.number {
        0 => TestAnswer::partial(&sent, request),
        1 => TestAnswer { bytes: b"HTTP/1.1 102 x\r\n\r\n".repeat(5000), after: AfterAnswer::Stall },
        _ => TestAnswer { bytes: b"HTTP/1.1 101 x\r\n\r\n".to_vec(), after: AfterAnswer::Stall },
    });
    let client = options().attempts(1).client().expect("valid options");
    let file = client.open(&server.url("/f")).expect("it is there");
    for expected in ["too many informational responses", "switches to a protocol"] {
        let error = read_error(&file, 0, 1000);
        assert!(error.to_string().contains(expected), "{error}");
    }
}
