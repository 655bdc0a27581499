//! Connections that are lost at each phase, and peers that are restarted.

use std::time::{Duration, Instant};

use hostbuf_mirror::{
    MirrorError, MirrorReceiver, MirrorReceiverOptions, MirrorRefusal, MirrorSender, MirrorSenderOptions,
};

use crate::cutting_proxy::{ALL, ByteBudget, CuttingProxy};
use crate::two_hosts::{TwoHosts, pool, publish, sender_to, soon};

/// The sizes of the records: the hellos of sender and receiver, a request, an answer.
const SENDER_HELLO: u64 = 80;
const RECEIVER_HELLO: u64 = 88;
const REQUEST: u64 = 352;
const ANSWER: u64 = 256;
const FRAME_BYTES: u64 = 100 << 10;

/// Sends three frames at once through connections that are cut, and checks that each is published
/// once.
fn send_through(budgets: &[ByteBudget]) {
    let hosts = TwoHosts::new(MirrorReceiverOptions::new());
    // The first connection must come about, so it is not cut before the end of the hellos.
    let proxy = CuttingProxy::start(hosts.receiver.address(), budgets.to_vec(), true);
    let sender = sender_to(proxy.address);
    let producer = hosts.producer(FRAME_BYTES, 8);
    let frames = [0, 1, 2].map(|number| publish(&producer, number));
    let begin = |frame| sender.begin(&hosts.here, frame, soon()).expect("it is begun");
    let pending: Vec<_> = frames.iter().map(begin).collect();
    for (number, frame) in (0..).zip(pending) {
        let copy = frame.wait().unwrap_or_else(|error| panic!("{budgets:?}: {error}"));
        hosts.check(&copy, number);
    }
    let counters = hosts.receiver.counters();
    assert_eq!((counters.published, counters.refused), (3, 0), "{budgets:?}");
    assert_eq!(sender.connections() > 1, budgets[0] != ALL, "{budgets:?}");
    assert_eq!(sender.counters().streamed, 3, "a frame that is sent again counts once: {budgets:?}");
}

#[test]
fn frames_survive_connections_that_are_lost_on_the_way_there() {
    let frame = REQUEST + FRAME_BYTES;
    let within = [1, REQUEST - 1, REQUEST, REQUEST + 1, REQUEST + 4096, frame - 1, frame];
    for before in 0..3 {
        for bytes in within {
            let up = SENDER_HELLO + before * frame + bytes;
            // After the last byte nothing is left to send, and the answers are on their way.
            if up < SENDER_HELLO + 3 * frame {
                send_through(&[(up, u64::MAX)]);
            }
        }
    }
}

#[test]
fn frames_survive_connections_that_are_lost_on_the_way_back() {
    for before in 0..3 {
        for bytes in [0, 1, ANSWER / 2, ANSWER - 1] {
            send_through(&[(u64::MAX, RECEIVER_HELLO + before * ANSWER + bytes)]);
        }
    }
}

#[test]
fn frames_survive_connections_that_are_lost_while_they_are_made_again() {
    let first = (SENDER_HELLO + REQUEST + 10, u64::MAX);
    for bytes in [0, 1, SENDER_HELLO - 1, SENDER_HELLO] {
        send_through(&[first, (bytes, u64::MAX)]);
    }
    // The hello, and the answers that the sender has missed.
    let first = (u64::MAX, RECEIVER_HELLO + 1);
    for bytes in [0, 1, RECEIVER_HELLO, RECEIVER_HELLO + 1, RECEIVER_HELLO + ANSWER + 1] {
        send_through(&[first, (u64::MAX, bytes)]);
    }
    send_through(&[first, first, first, first]);
    send_through(&[ALL]);
}

#[test]
fn a_deadline_bounds_a_frame_on_a_connection_that_carries_nothing() {
    // Large enough that the buffers of the sockets do not take it.
    let (bytes, up) = (64 << 20, SENDER_HELLO + REQUEST + (1 << 20));
    let hosts = TwoHosts::new(MirrorReceiverOptions::new());
    let proxy = CuttingProxy::start(hosts.receiver.address(), vec![(up, u64::MAX)], false);
    let (sender, producer) = (sender_to(proxy.address), hosts.producer(bytes, 2));
    let frame = publish(&producer, 0);
    let begun = Instant::now();
    let error = sender.send(&hosts.here, &frame, begun + Duration::from_millis(300)).expect_err("in time");
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    let text = error.to_string();
    let MirrorError::Deadline { frame: of, peer, sent, acknowledged: 0, lost: None } = error else {
        panic!("{text}");
    };
    assert!(*of == frame && peer == proxy.address && (1..bytes).contains(&sent), "{text}");
    assert!(text.contains(&format!("of {bytes} bytes were sent")), "{text}");
    // The next frame takes another connection.
    let frame = publish(&producer, 1);
    let copy = sender.send(&hosts.here, &frame, soon()).expect("a copy");
    hosts.check(&copy, 1);
    assert_eq!(hosts.receiver.counters().published, 1);
}

#[test]
fn a_deadline_bounds_the_attempts_to_connect_and_the_error_states_why() {
    let hosts = TwoHosts::new(MirrorReceiverOptions::new());
    let (sender, producer) = (hosts.sender(), hosts.producer(4096, 4));
    let TwoHosts { here, receiver, .. } = hosts;
    drop(receiver);
    let begun = Instant::now();
    let error =
        sender.send(&here, &publish(&producer, 0), begun + Duration::from_millis(200)).expect_err("no peer");
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    let is_lost = matches!(&error, MirrorError::Deadline { lost: Some(_), sent: 0, .. });
    assert!(is_lost && error.to_string().contains("the connection is lost"), "{error}");
}

#[test]
fn frames_with_little_time_do_not_keep_the_sender_from_connecting() {
    let hosts = TwoHosts::new(MirrorReceiverOptions::new());
    // The first connection carries a part of a frame, and the second one nothing.
    let budgets = vec![(SENDER_HELLO + REQUEST + 1000, u64::MAX), (0, 0)];
    let proxy = CuttingProxy::start(hosts.receiver.address(), budgets, false);
    let options = MirrorSenderOptions::new().connect_timeout(Duration::from_secs(1));
    let sender = MirrorSender::connect(proxy.address, options).expect("it listens");
    let producer = hosts.producer(FRAME_BYTES, 4);
    for number in 0..6 {
        let until = Instant::now() + Duration::from_millis(50);
        let error = sender.send(&hosts.here, &publish(&producer, number), until).expect_err("no answer");
        assert!(matches!(error, MirrorError::Deadline { .. }), "{error}");
    }
    // They have not ended the attempt.
    assert_eq!(proxy.accepted(), 2);
    let copy = sender.send(&hosts.here, &publish(&producer, 6), soon()).expect("a copy");
    hosts.check(&copy, 6);
    assert_eq!(proxy.accepted(), 3);
}

#[test]
fn the_deadline_of_a_frame_behind_others_is_its_own() {
    let hosts = TwoHosts::new(MirrorReceiverOptions::new());
    let proxy = CuttingProxy::start(hosts.receiver.address(), vec![(SENDER_HELLO, u64::MAX)], false);
    let options = MirrorSenderOptions::new().window(1);
    let sender = MirrorSender::connect(proxy.address, options).expect("it listens");
    let producer = hosts.producer(4096, 4);
    let first = sender.begin(&hosts.here, &publish(&producer, 0), soon()).expect("it is begun");
    let until = Instant::now() + Duration::from_millis(50);
    let error = sender.begin(&hosts.here, &publish(&producer, 1), until).expect_err("the window is full");
    assert!(matches!(error, MirrorError::Deadline { sent: 0, .. }), "{error}");
    assert!(!first.is_settled());
    drop(sender);
    assert!(matches!(first.wait(), Err(MirrorError::Closed)));
}

#[test]
fn a_restarted_receiver_gets_what_was_not_acknowledged() {
    let hosts = TwoHosts::new(MirrorReceiverOptions::new());
    let address = hosts.receiver.address();
    let (sender, producer) = (hosts.sender(), hosts.producer(FRAME_BYTES, 8));
    let copy = sender.send(&hosts.here, &publish(&producer, 0), soon()).expect("a copy");
    hosts.check(&copy, 0);
    let TwoHosts { here, there, receiver } = hosts;
    drop(receiver);
    let pending: Vec<_> =
        (1..4).map(|n| sender.begin(&here, &publish(&producer, n), soon()).expect("it is begun")).collect();
    drop(there);
    let there = pool("there again");
    let receiver =
        MirrorReceiver::listen(&there, address, MirrorReceiverOptions::new()).expect("the same port");
    for (number, frame) in (1..).zip(pending) {
        let copy = frame.wait().expect("a copy");
        assert_eq!(copy.pool, there.id());
        crate::two_hosts::check(&there, &copy, number);
    }
    assert_eq!(receiver.counters().published, 3);
}

#[test]
fn a_restarted_sender_learns_what_its_predecessor_has_sent() {
    let hosts = TwoHosts::new(MirrorReceiverOptions::new());
    let producer = hosts.producer(FRAME_BYTES, 8);
    let frame = publish(&producer, 0);
    let copy = hosts.sender().send(&hosts.here, &frame, soon()).expect("a copy");
    let successor = hosts.sender();
    match successor.send(&hosts.here, &frame, soon()) {
        Err(MirrorError::Refused { refusal: MirrorRefusal::NotNewer { copy: Some(known), .. }, .. }) => {
            assert_eq!(*known, copy);
        }
        other => panic!("{other:?}"),
    }
    let copy = successor.send(&hosts.here, &publish(&producer, 1), soon()).expect("a copy");
    hosts.check(&copy, 1);
}
