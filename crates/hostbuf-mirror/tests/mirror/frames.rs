//! Frames over connections that hold.

use std::time::{Duration, Instant};

use hostbuf_mirror::{MirrorError, MirrorReceiverOptions, MirrorRefusal, MirrorSender, MirrorSenderOptions};

use crate::two_hosts::{TwoHosts, publish, soon};

#[test]
fn copies_are_whole_and_have_the_header_of_the_frame() {
    let hosts = TwoHosts::new(MirrorReceiverOptions::new());
    let (sender, producer) = (hosts.sender(), hosts.producer(1_000_000, 4));
    for number in 0..20 {
        let frame = publish(&producer, number);
        let copy = sender.send(&hosts.here, &frame, soon()).expect("a copy");
        assert!(copy.pool == hosts.there.id() && copy.length == frame.length);
        hosts.check(&copy, number);
    }
    let counters = hosts.receiver.counters();
    assert_eq!((counters.published, counters.refused, sender.connections()), (20, 0, 1));
}

#[test]
fn several_frames_are_on_their_way_and_are_acknowledged_in_order() {
    // All copies stay: a thread may look at its own after the others have sent all of theirs.
    let hosts = TwoHosts::new(MirrorReceiverOptions::new().blocks(96).retain(90));
    let options = MirrorSenderOptions::new().window(8);
    let sender = MirrorSender::connect(hosts.receiver.address(), options).expect("it listens");
    let producer = hosts.producer(300_000, 16);
    for round in 0..10u64 {
        let numbers = round * 8..round * 8 + 8;
        let begin = |number| sender.begin(&hosts.here, &publish(&producer, number), soon());
        let pending: Vec<_> = numbers.clone().map(|number| begin(number).expect("it is begun")).collect();
        // When the last one is acknowledged, so are those before.
        let mut copies = Vec::new();
        for frame in pending.into_iter().rev() {
            copies.push(frame.wait().expect("a copy"));
        }
        copies.reverse();
        for (copy, number) in copies.iter().zip(numbers) {
            hosts.check(copy, number);
        }
    }
    assert_eq!(hosts.receiver.counters().published, 80);
}

#[test]
fn threads_share_a_sender() {
    // All copies stay: a thread may look at its own after the others have sent all of theirs.
    let hosts = TwoHosts::new(MirrorReceiverOptions::new().blocks(96).retain(90));
    let sender = hosts.sender();
    std::thread::scope(|scope| {
        for thread in 0..3u64 {
            let (hosts, sender) = (&hosts, &sender);
            scope.spawn(move || {
                let producer = hosts.producer(100_000, 4);
                for number in thread * 1000..thread * 1000 + 30 {
                    let copy = sender.send(&hosts.here, &publish(&producer, number), soon()).expect("a copy");
                    hosts.check(&copy, number);
                }
            });
        }
    });
    assert_eq!(hosts.receiver.counters().published, 90);
}

#[test]
fn older_and_repeated_frames_are_refused_and_not_published() {
    let hosts = TwoHosts::new(MirrorReceiverOptions::new());
    let (sender, producer) = (hosts.sender(), hosts.producer(10_000, 8));
    let frames = [0, 1, 2].map(|number| publish(&producer, number));
    let copy = sender.send(&hosts.here, &frames[1], soon()).expect("a copy");
    let refusal = |frame| match sender.send(&hosts.here, frame, soon()) {
        Err(MirrorError::Refused { frame: refused, refusal, .. }) if *refused == *frame => refusal,
        other => panic!("{other:?}"),
    };
    assert_eq!(refusal(&frames[0]), MirrorRefusal::NotNewer { published: 1, copy: None });
    assert_eq!(refusal(&frames[1]), MirrorRefusal::NotNewer { published: 1, copy: Some(Box::new(copy)) });
    let copy = sender.send(&hosts.here, &frames[2], soon()).expect("the newer one");
    hosts.check(&copy, 2);
    let counters = hosts.receiver.counters();
    assert_eq!((counters.published, counters.refused), (2, 2));
    assert_eq!(sender.counters().streamed, 2, "refused frames are not counted");
}

#[test]
fn a_receiver_without_a_free_block_answers_in_time() {
    let hosts = TwoHosts::new(MirrorReceiverOptions::new().blocks(2));
    let (sender, producer) = (hosts.sender(), hosts.producer(50_000, 8));
    let held: Vec<_> = (0..2)
        .map(|number| {
            let copy = sender.send(&hosts.here, &publish(&producer, number), soon()).expect("a copy");
            hosts.there.acquire(&copy).expect("it is published")
        })
        .collect();
    let begun = Instant::now();
    let frame = publish(&producer, 2);
    let error = sender.send(&hosts.here, &frame, begun + Duration::from_secs(2)).expect_err("it is full");
    let text = error.to_string();
    let MirrorError::Refused { refusal: MirrorRefusal::Full { waited, details }, .. } = error else {
        panic!("{text}");
    };
    assert!(waited < Duration::from_secs(2) && details.contains("of 2 blocks"), "{text}");
    assert!(text.contains("release blocks on that host sooner"), "{text}");
    drop(held);
    // The same frame: it was refused, so nothing newer was published.
    let copy = sender.send(&hosts.here, &frame, soon()).expect("there is space again");
    hosts.check(&copy, 2);
    assert_eq!(sender.connections(), 1);
}

#[test]
fn longer_frames_get_a_segment_of_longer_blocks_up_to_the_limit() {
    let hosts = TwoHosts::new(MirrorReceiverOptions::new().limit(4 << 20));
    let sender = hosts.sender();
    for (number, bytes) in (0..).zip([1 << 12, 1 << 16, 1 << 20, 2 << 20, 1 << 14]) {
        let producer = hosts.producer(bytes, 2);
        let copy = sender.send(&hosts.here, &publish(&producer, number), soon()).expect("a copy");
        hosts.check(&copy, number);
    }
    let producer = hosts.producer((2 << 20) + 1, 2);
    let error = sender.send(&hosts.here, &publish(&producer, 9), soon()).expect_err("it is too long");
    let (length, most) = ((2 << 20) + 4096, 2 << 20);
    let is_too_long =
        matches!(error, MirrorError::TooLong { length: l, most: m, .. } if (l, m) == (length, most));
    assert!(is_too_long, "{error}");
}

#[test]
fn a_pool_without_memory_refuses_and_the_next_frame_is_served() {
    // A host has less memory than all of these blocks.
    let options = MirrorReceiverOptions::new().limit(1 << 50).blocks(1 << 16).block_bytes(1 << 30);
    let hosts = TwoHosts::new(options);
    let (sender, producer) = (hosts.sender(), hosts.producer(100_000, 4));
    let error = sender.send(&hosts.here, &publish(&producer, 0), soon()).expect_err("not so much");
    let is_pool = matches!(&error, MirrorError::Refused { refusal: MirrorRefusal::Pool { .. }, .. });
    assert!(is_pool, "{error}");
    assert_eq!(sender.connections(), 1);
}

#[test]
fn a_token_that_is_gone_is_an_error_here() {
    let hosts = TwoHosts::new(MirrorReceiverOptions::new());
    let (sender, producer) = (hosts.sender(), hosts.producer(4096, 2));
    let frame = publish(&producer, 0);
    publish(&producer, 1);
    publish(&producer, 2);
    let error = sender.send(&hosts.here, &frame, soon()).expect_err("it is gone");
    assert!(matches!(error, MirrorError::Acquire(_)), "{error}");
}
