//! Bodies in chunks, which arrive in parts of any length.

use std::io::Write;
use std::net::{Ipv4Addr, TcpListener};

use tokio::task::yield_now;

use super::super::connection_pool::ConnectionPool;
use super::super::get_response::GetResponse;
use super::super::http_connection::HttpConnection;
use super::*;

/// Sends a request to a server whose answer arrives in two parts, and reads the body into a buffer
/// with room for `room` bytes at a time. Returns the body, and whether the connection was kept.
fn receive(parts: [&[u8]; 2], room: usize) -> Result<(Vec<u8>, bool), RemoteProblem> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let stream = tokio::net::TcpStream::connect(address).await.expect("it listens");
        let (mut server, _) = listener.accept().expect("a connection");
        let send = async move {
            for part in parts {
                server.write_all(part).expect("it is connected");
                // The client receives this part before the next one is sent.
                for _ in 0..4 {
                    yield_now().await;
                }
            }
            server
        };
        let receive = async {
            let mut connection = HttpConnection::new(stream);
            let head = connection.exchange(b"GET / HTTP/1.1\r\n\r\n").await.expect("a head");
            let pool = Arc::new(ConnectionPool::new(1));
            let mut response = GetResponse::new(pool.clone(), "a".into(), head, connection);
            let mut body = Vec::new();
            loop {
                let mut buffer = vec![0; room];
                match response.read(&mut &mut buffer[..]).await? {
                    0 => return Ok((body, pool.len() == 1)),
                    bytes => body.extend(&buffer[..bytes]),
                }
            }
        };
        // The server's end of the connection lives until the body was read.
        let (_server, received) = tokio::join!(send, receive);
        received
    })
}

const HEAD: &[u8] = b"HTTP/1.1 206 x\r\nTransfer-Encoding: chunked\r\n\r\n";

#[test]
fn a_body_is_the_same_if_it_arrives_in_two_parts() {
    let body = b"5\r\nhello\r\n00a ;name=\"value\"\r\n, chunks.\n\r\n0;last\r\nTrailer: x\r\n\r\n";
    let answer = [HEAD, body].concat();
    for at in 0..=answer.len() {
        let (first, second) = answer.split_at(at);
        for room in [1, 7, 100] {
            let received = receive([first, second], room);
            assert_eq!(received, Ok((b"hello, chunks.\n".to_vec(), true)), "at byte {at}, room for {room}");
        }
    }
}

#[test]
fn a_chunk_that_breaks_the_rules_is_an_error() {
    let bodies: [&[u8]; 14] = [
        b"\r\n",
        b"\n",
        b";x\r\n",
        b" 5\r\nhello\r\n0\r\n\r\n",
        b"+5\r\nhello\r\n0\r\n\r\n",
        b"-5\r\nhello\r\n0\r\n\r\n",
        b"0x5\r\nhello\r\n0\r\n\r\n",
        b"5 5\r\nhello\r\n0\r\n\r\n",
        b"5\nhello\r\n0\r\n\r\n",
        b"5;a\rb\r\nhello\r\n0\r\n\r\n",
        b"5\r\nhello!\r\n0\r\n\r\n",
        b"5\r\nhello0\r\n\r\n",
        b"10000000000000000\r\nhello\r\n0\r\n\r\n",
        b"0\r\nTrailer\n\n",
    ];
    for body in bodies {
        let result = receive([HEAD, body], 100);
        let why = result.as_ref().map_err(ToString::to_string);
        assert!(
            matches!(&result, Err(RemoteProblem::Cut { why, .. }) if why.contains("invalid HTTP")),
            "{why:?}"
        );
    }
}

#[test]
fn lines_and_trailers_have_a_limit() {
    let line = [b"5;", &b"x".repeat(70_000)[..], b"\r\nhello\r\n0\r\n\r\n"].concat();
    let trailers = [b"0\r\n", &b"a: b\r\n".repeat(20_000)[..], b"\r\n"].concat();
    for body in [line, trailers] {
        assert!(receive([HEAD, &body], 100).is_err());
    }
}

#[test]
fn a_connection_with_bytes_after_the_body_is_not_kept() {
    for more in [&b"x"[..], b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"] {
        let answer = [HEAD, b"5\r\nhello\r\n0\r\n\r\n", more].concat();
        assert_eq!(receive([&answer, b""], 100), Ok((b"hello".to_vec(), false)));
        let answer = [b"HTTP/1.1 206 x\r\nContent-Length: 5\r\n\r\nhello", more].concat();
        assert_eq!(receive([&answer, b""], 100), Ok((b"hello".to_vec(), false)));
    }
}
