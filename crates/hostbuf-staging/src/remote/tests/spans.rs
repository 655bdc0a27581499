//! The spans of remote objects.

use tracing::Level;
use tracing_subscriber::fmt::format::FmtSpan;

use super::test_server::{TestAnswer, TestServer};
use super::*;
use crate::tests::SpanLog;

/// Reads an object whose first answers fail, by a ring and by itself. Returns its address.
fn read_on_attempts(mode: RequestMode, content: &[u8]) -> String {
    let sent = content.to_vec();
    let server = TestServer::new(move |request| match request.number {
        0 | 2 => TestAnswer::new("503 x", &[("Retry-After", "0")], b"busy"),
        _ => TestAnswer::partial(&sent, request),
    });
    let client = options().mode(mode).client().expect("valid options");
    let file = client.open(&server.url("/f")).expect("the second attempt succeeds");
    assert!(read_by_ring(&file, 1).expect("the second attempt succeeds") == content);
    server.url("/f")
}

/// The events of threads of a ring and of reactors reach only the subscriber of the process.
#[test]
fn an_attempt_is_logged_in_the_span_of_its_transfer() {
    let (log, content) = (SpanLog::default(), content(PIECE));
    let subscriber = log.subscriber(Level::DEBUG, FmtSpan::NONE);
    tracing::subscriber::set_global_default(subscriber).expect("no other test sets it");
    for mode in [RequestMode::Easy, reactors(1, 2)] {
        let url = read_on_attempts(mode, &content);
        let lines = log.lines();
        let attempts = lines.iter().filter(|line| line.contains("trying again") && line.contains(&url));
        let of_open = format!("open{{object={url}}}: ");
        let of_transfer = format!("transfer{{verb=\"read\" name={url} bytes={PIECE}}}: ");
        let starts = [of_open, of_transfer];
        let attempts: Vec<_> = attempts.collect();
        assert_eq!(attempts.len(), 2, "{lines:#?}");
        assert!(attempts.iter().zip(&starts).all(|(line, start)| line.contains(start)), "{attempts:#?}");
    }
}
