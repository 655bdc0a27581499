//! Senders that connect, and connect again.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use hostbuf_mirror::{MirrorError, MirrorReceiver, MirrorReceiverOptions, MirrorSender, MirrorSenderOptions};

use crate::cutting_proxy::CuttingProxy;
use crate::two_hosts::{TwoHosts, pool, publish, sender_to, soon};

#[test]
fn connecting_to_nothing_fails_in_time() {
    let silent = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = silent.local_addr().expect("it has an address");
    let options = MirrorSenderOptions::new().connect_timeout(Duration::from_millis(100));
    let begun = Instant::now();
    let error = MirrorSender::connect(address, options.clone()).expect_err("nobody answers");
    assert!(error.to_string().contains("it does not respond"), "{error}");
    assert!(begun.elapsed() < Duration::from_secs(5));
    drop(silent);
    let error = MirrorSender::connect(address, options).expect_err("nobody listens");
    let is_unreachable = matches!(&error, MirrorError::Unreachable { .. });
    assert!(is_unreachable && error.to_string().contains("refused"), "{error}");
}

#[test]
fn a_program_that_is_no_mirror_is_named_as_such() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("it has an address");
    let other = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a connection");
        std::io::Write::write_all(&mut stream, &[b'x'; 88]).expect("it reads");
        stream
    });
    let error = MirrorSender::connect(address, MirrorSenderOptions::new()).expect_err("no mirror");
    assert!(error.to_string().contains("the program there is not a hostbuf mirror"), "{error}");
    drop(other.join());
}

#[test]
fn invalid_options_are_refused() {
    let there = pool("there");
    for options in [
        MirrorReceiverOptions::new().blocks(1),
        MirrorReceiverOptions::new().blocks(4).retain(4),
        MirrorReceiverOptions::new().block_bytes(0),
        MirrorReceiverOptions::new().block_bytes(1 << 20).limit(1 << 20),
        MirrorReceiverOptions::new().connections(0),
        MirrorReceiverOptions::new().timeout(Duration::ZERO),
        MirrorReceiverOptions::new().timeout(Duration::MAX),
    ] {
        let error = MirrorReceiver::listen(&there, "127.0.0.1:0", options).expect_err("it is invalid");
        assert!(matches!(error, MirrorError::Invalid { .. }), "{error}");
    }
    for time in [Duration::ZERO, Duration::MAX] {
        let options = MirrorSenderOptions::new().connect_timeout(time);
        let error = MirrorSender::connect("127.0.0.1:1", options).expect_err("it is invalid");
        assert!(
            matches!(&error, MirrorError::Invalid { what } if what.contains("connect_timeout")),
            "{error}"
        );
    }
    for window in [0, 65] {
        let error = MirrorSender::connect("127.0.0.1:1", MirrorSenderOptions::new().window(window));
        assert!(matches!(error, Err(MirrorError::Invalid { .. })));
    }
}

#[test]
fn the_connection_of_a_sender_that_was_lost_without_notice_is_replaced() {
    // The receiver sees the first connection as open: nothing comes, and no end.
    let hosts = TwoHosts::new(MirrorReceiverOptions::new());
    let up = 80 + 352 + 1000;
    let proxy = CuttingProxy::start(hosts.receiver.address(), vec![(up, u64::MAX)], false);
    let (sender, producer) = (sender_to(proxy.address), hosts.producer(100_000, 4));
    let until = Instant::now() + Duration::from_millis(200);
    sender.send(&hosts.here, &publish(&producer, 0), until).expect_err("it is stuck");
    let copy = sender.send(&hosts.here, &publish(&producer, 1), soon()).expect("a copy");
    hosts.check(&copy, 1);
    assert_eq!((proxy.accepted(), hosts.receiver.counters().published), (2, 1));
}

#[test]
fn a_receiver_without_a_free_connection_says_so() {
    let hosts = TwoHosts::new(MirrorReceiverOptions::new().connections(2));
    let (first, second) = (hosts.sender(), hosts.sender());
    let error = MirrorSender::connect(hosts.receiver.address(), MirrorSenderOptions::new());
    let error = error.expect_err("there are two");
    assert!(error.to_string().contains("as many connections as it may have"), "{error}");
    // Those that it has are served.
    let producer = hosts.producer(4096, 4);
    first.send(&hosts.here, &publish(&producer, 0), soon()).expect("a copy");
    second.send(&hosts.here, &publish(&producer, 1), soon()).expect("a copy");
}
