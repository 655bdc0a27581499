//! Failures after which another attempt goes on at the missing byte.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use nix::time::ClockId;

use super::test_server::{AfterAnswer, TestAnswer, TestServer};
use super::*;

const BYTES: usize = 1000;

/// Serves an object whose requests are answered by `answer`, except the first one.
fn server(answer: impl Fn(usize, TestAnswer) -> TestAnswer + Send + Sync + 'static) -> (TestServer, Vec<u8>) {
    let sent = content(BYTES);
    let server = TestServer::new(move |request| {
        let right = TestAnswer::partial(&sent, request);
        if request.number == 0 { right } else { answer(request.number, right) }
    });
    (server, content(BYTES))
}

/// Reads the whole object. Returns the beginnings of the requested ranges.
#[track_caller]
fn starts(options: RemoteOptions, server: &TestServer, content: &[u8]) -> Vec<u64> {
    let client = options.attempts(3).client().expect("valid options");
    let file = client.open(&server.url("/f")).expect("it is there");
    let mut bytes = vec![0; content.len()];
    file.read(&mut bytes, 0).expect("a later attempt succeeds");
    assert!(bytes == content);
    server.requests()[1..].iter().map(|request| request.range().expect("a range").start).collect()
}

#[test]
fn a_busy_server_is_asked_again() {
    for options in both_clients() {
        for status in ["408 x", "429 x", "500 x", "502 x", "503 x", "504 x"] {
            let (server, content) = server(move |number, right| match number {
                1 | 2 => TestAnswer::new(status, &[("Retry-After", "0")], b"busy"),
                _ => right,
            });
            assert_eq!(starts(options.clone(), &server, &content), [0, 0, 0], "{status}");
        }
    }
}

#[test]
fn a_cut_body_goes_on_at_the_missing_byte() {
    for options in both_clients() {
        for after in [AfterAnswer::Close, AfterAnswer::Reset] {
            let (server, content) = server(move |number, right| match number {
                1 => right.cut(400, AfterAnswer::Close),
                // Of 400 bytes, 100 are missing.
                2 => right.cut(100, after),
                _ => right,
            });
            let starts = starts(options.clone(), &server, &content);
            // A reset may overtake the bytes before it.
            let right = [vec![0, 600, 900], vec![0, 600, 600]];
            assert!(right.contains(&starts), "{after:?}: {starts:?}");
            assert!(after == AfterAnswer::Reset || starts == right[0], "{starts:?}");
        }
    }
}

#[test]
fn a_chunked_body_without_its_end_goes_on_at_the_missing_byte() {
    for options in both_clients() {
        let (server, content) = server(|number, right| match number {
            1 => {
                let body = &right.bytes[right.bytes.len() - BYTES..];
                let body = [b"12c\r\n", &body[..300], b"\r\n"].concat();
                let headers = [("Transfer-Encoding", "chunked"), ("Content-Range", "bytes 0-999/1000")];
                TestAnswer::of("206 Partial Content", &headers, &body).then(AfterAnswer::Close)
            }
            _ => right,
        });
        assert_eq!(starts(options.clone(), &server, &content), [0, 300]);
    }
}

#[test]
fn a_server_that_stays_broken_is_an_error_after_the_last_attempt() {
    for options in both_clients() {
        let garbage = |_: usize, _: TestAnswer| TestAnswer {
            bytes: b"no HTTP\r\n\r\n".to_vec(),
            after: AfterAnswer::Close,
        };
        let busy = |_: usize, _: TestAnswer| TestAnswer::new("503 x", &[], b"");
        let silent = |_: usize, right: TestAnswer| right.cut(BYTES, AfterAnswer::Close);
        let (garbage, busy, silent) = (server(garbage).0, server(busy).0, server(silent).0);
        for server in [garbage, busy, silent] {
            let client = options.clone().attempts(3).client().expect("valid options");
            let file = client.open(&server.url("/f")).expect("it is there");
            let error = read_error(&file, 0, BYTES);
            assert!(is_exhausted(&error, 3), "{error}");
            assert_eq!(server.requests().len(), 4, "{error}");
            assert!(error.to_string().ends_with("(3 attempts in a row have failed)"), "{error}");
        }
    }
}

#[test]
fn an_error_counts_the_bytes_of_all_attempts() {
    for options in both_clients() {
        // The last attempts bring nothing: a body without bytes, and no answer.
        let silent = || TestAnswer { bytes: Vec::new(), after: AfterAnswer::Close };
        let (server, _) = server(move |number, right| match number {
            1 => right.cut(400, AfterAnswer::Close),
            2 => right.cut(400, AfterAnswer::Close),
            _ => silent(),
        });
        let client = options.clone().attempts(3).client().expect("valid options");
        let file = client.open(&server.url("/f")).expect("it is there");
        let error = read_error(&file, 0, BYTES);
        assert_eq!((cut_after(&error), error.attempts), (Some(600), 3), "{error}");
    }
}

#[test]
fn bodies_that_bring_little_are_no_progress_for_ever() {
    for options in both_clients() {
        let (server, _) = server(|_, right| {
            let bytes = right.bytes.len();
            let head = right.bytes.windows(4).position(|four| four == b"\r\n\r\n").expect("a head") + 4;
            right.cut(bytes - head - 1, AfterAnswer::Close)
        });
        let client = options.clone().attempts(4).client().expect("valid options");
        let file = client.open(&server.url("/f")).expect("it is there");
        let error = read_error(&file, 0, BYTES);
        assert_eq!((cut_after(&error), server.requests().len()), (Some(4), 5), "{error}");
    }
}

#[test]
fn a_silent_server_is_a_timeout() {
    for options in both_clients() {
        // Long enough for the requests that are answered.
        let limit = Duration::from_secs(2);
        for sent in [0, 300] {
            let (server, _) = server(move |_, right| {
                let bytes = right.bytes.len();
                right.cut(if sent == 0 { bytes } else { BYTES - sent }, AfterAnswer::Stall)
            });
            let client = options.clone().attempts(2).timeout(limit).client().expect("valid options");
            let file = client.open(&server.url("/f")).expect("it is there");
            let begun = Instant::now();
            let error = read_error(&file, 0, BYTES);
            assert_eq!((error.problem, error.attempts), (RemoteProblem::Timeout { timeout: limit }, 2));
            assert!(begun.elapsed() >= 2 * limit);
        }
    }
}

#[test]
fn bytes_before_a_silence_are_kept() {
    for options in both_clients() {
        let (server, content) = server(|number, right| match number {
            1 => right.cut(BYTES - 300, AfterAnswer::Stall),
            _ => right,
        });
        let client = options.clone().timeout(Duration::from_secs(2)).client().expect("valid options");
        let file = client.open(&server.url("/f")).expect("it is there");
        let mut bytes = vec![0; BYTES];
        file.read(&mut bytes, 0).expect("the second attempt succeeds");
        assert!(bytes == content);
        assert_eq!(server.requests()[2].range(), Some(300..BYTES as u64));
    }
}

#[test]
fn a_silence_within_a_long_body_costs_no_bytes_and_no_processor_time() {
    let sent = content(400_000);
    let server = TestServer::new(move |request| {
        let right = TestAnswer::partial(&sent, request);
        // The client waits for more bytes than there are.
        if request.number == 1 { right.cut(300_000, AfterAnswer::Stall) } else { right }
    });
    let limit = Duration::from_secs(2);
    let client = options().attempts(2).timeout(limit).client().expect("valid options");
    let file = client.open(&server.url("/f")).expect("it is there");
    let mut bytes = vec![0; 400_000];
    let (begun, used) = (Instant::now(), processor_time());
    file.read(&mut bytes, 0).expect("the second attempt succeeds");
    assert!(bytes == content(400_000));
    assert!(begun.elapsed() >= limit && processor_time() - used < limit / 2);
    assert_eq!(server.requests()[2].range(), Some(100_000..400_000));
}

/// Returns the processor time of this thread.
fn processor_time() -> Duration {
    ClockId::CLOCK_THREAD_CPUTIME_ID.now().expect("the clock of the thread").into()
}

#[test]
fn a_connection_that_the_server_has_closed_is_no_failure() {
    let [own, library] = both_clients();
    // The library reports a connection that ends while it sends the request, so it needs another
    // attempt.
    for options in [own.attempts(1), library] {
        // The answers are complete, and do not state that the connection ends.
        let (server, content) = server(|_, right| right.then(AfterAnswer::Close));
        let client = options.client().expect("valid options");
        let file = client.open(&server.url("/f")).expect("it is there");
        for _ in 0..20 {
            let mut bytes = vec![0; BYTES];
            file.read(&mut bytes, 0).expect("it is read");
            assert!(bytes == content);
        }
        assert_eq!(server.requests().len(), 21);
    }
}

#[test]
fn bytes_after_an_answer_are_not_the_next_answer() {
    // Each answer is followed by another one, which nobody has asked for.
    let (server, content) = server(|_, right| {
        let other = right.bytes.iter().map(|byte| byte ^ u8::from(*byte > 127)).collect::<Vec<_>>();
        TestAnswer { bytes: [right.bytes, other].concat(), after: AfterAnswer::Keep }
    });
    let client = options().attempts(1).client().expect("valid options");
    let file = client.open(&server.url("/f")).expect("it is there");
    for _ in 0..5 {
        let mut bytes = vec![0; BYTES];
        file.read(&mut bytes, 0).expect("it is read");
        assert!(bytes == content);
    }
}

#[test]
fn a_server_that_is_not_there_is_an_error() {
    let address = TestServer::of_content(Vec::new()).address();
    let client = options().attempts(2).client().expect("valid options");
    let error = client.open(&format!("http://{address}/f")).expect_err("it has ended");
    assert!(matches!(error.problem, RemoteProblem::Connect { .. }) && error.attempts == 2, "{error}");
}

#[test]
fn a_cancelled_transfer_ends_with_its_requests() {
    let (sent, is_cancelled) = (content(20 * PIECE), Arc::new(AtomicBool::new(false)));
    let waits_for = is_cancelled.clone();
    let server = TestServer::new(move |request| {
        while request.number > 0 && !waits_for.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        TestAnswer::partial(&sent, request)
    });
    let client = options().attempts(1).client().expect("valid options");
    let file = client.open(&server.url("/f")).expect("it is there");
    let ring_options = RingOptions::new().slots(2).slot_bytes(4 * PIECE).piece_bytes(PIECE).workers(2);
    let ring =
        Ring::new(SimulatedDevice::new(), ring_options, HostMemory::new(8 * PIECE)).expect("valid options");
    let memory = Arc::new(SimulatedMemory::new(20 * PIECE));
    let transfer = file.pread(&ring, DeviceTarget::new(memory), 0);
    while server.requests().len() < 3 {
        std::thread::yield_now();
    }
    transfer.cancel();
    is_cancelled.store(true, Ordering::Release);
    let error = transfer.wait().expect_err("it was cancelled");
    assert!(matches!(error, TransferError::Cancelled { .. }), "{error}");
    drop(ring);
    assert_eq!(server.requests().len(), 3, "each worker has made one request");
}
