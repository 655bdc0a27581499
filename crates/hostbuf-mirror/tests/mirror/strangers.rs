//! Peers that are no senders, or break the protocol.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use hostbuf_mirror::MirrorReceiverOptions;

use crate::two_hosts::{TwoHosts, publish, soon};

/// Connects, sends `bytes`, and waits until the receiver has ended the connection.
fn is_ended_after(hosts: &TwoHosts, bytes: &[u8]) {
    let mut stream = TcpStream::connect(hosts.receiver.address()).expect("it listens");
    stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a TCP socket");
    // The receiver may have ended the connection already.
    let _ = stream.write_all(bytes);
    loop {
        match stream.read(&mut [0; 4096]) {
            Ok(0) => return,
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return,
            Err(error) => panic!("it is not ended after {} bytes: {error}", bytes.len()),
        }
    }
}

fn is_served(hosts: &TwoHosts) {
    let (sender, producer) = (hosts.sender(), hosts.producer(4096, 4));
    let copy = sender.send(&hosts.here, &publish(&producer, 1), soon()).expect("a copy");
    hosts.check(&copy, 1);
}

/// Returns bytes that look random, the same in each run.
fn noise(length: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    std::iter::repeat_with(next).take(length).collect()
}

/// Records what a sender writes first: the hello and the request of a frame of 4096 bytes.
fn first_records() -> Vec<u8> {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let hosts = TwoHosts::new(MirrorReceiverOptions::new());
    let (address, target) = (listener.local_addr().expect("its address"), hosts.receiver.address());
    let recorder = std::thread::spawn(move || {
        let (mut client, _) = listener.accept().expect("a connection");
        let mut server = TcpStream::connect(target).expect("it listens");
        let mut records = vec![0; 80 + 352 + 4096];
        client.read_exact(&mut records[..80]).expect("a hello");
        server.write_all(&records[..80]).expect("it reads");
        let mut hello = [0; 88];
        server.read_exact(&mut hello).expect("a hello");
        client.write_all(&hello).expect("it reads");
        client.read_exact(&mut records[80..]).expect("a frame");
        records
    });
    let sender = crate::two_hosts::sender_to(address);
    let producer = hosts.producer(4096, 2);
    let pending = sender.begin(&hosts.here, &publish(&producer, 0), soon()).expect("it is begun");
    let records = recorder.join().expect("no panic");
    drop((sender, pending));
    records
}

#[test]
fn garbage_ends_its_connection_and_nothing_else() {
    let hosts = TwoHosts::new(MirrorReceiverOptions::new());
    for seed in 0..20 {
        is_ended_after(&hosts, &noise(5000, seed));
    }
    let records = first_records();
    // A valid hello, then garbage.
    is_ended_after(&hosts, &[&records[..80], &noise(5000, 99)].concat());
    // Each byte of the hello and of the request is checked.
    for at in 0..80 + 352 {
        let mut damaged = records.clone();
        damaged[at] ^= 0x10;
        is_ended_after(&hosts, &damaged);
    }
    assert_eq!(hosts.receiver.counters().published, 0);
    is_served(&hosts);
}

#[test]
fn peers_that_send_nothing_more_are_dropped_and_keep_no_block() {
    let options = MirrorReceiverOptions::new().timeout(Duration::from_millis(200)).blocks(2);
    let hosts = TwoHosts::new(options);
    let records = first_records();
    for bytes in [0, 1, 79, 81, 80 + 351, 80 + 352, 80 + 352 + 4095] {
        is_ended_after(&hosts, &records[..bytes]);
    }
    assert_eq!(hosts.receiver.counters().published, 0);
    is_served(&hosts);
}

#[test]
fn a_hello_alone_makes_no_memory() {
    let hosts = TwoHosts::new(MirrorReceiverOptions::new());
    let _sender = hosts.sender();
    let status: serde_json::Value =
        serde_json::from_str(&hosts.there.status().expect("the broker answers")).expect("JSON");
    assert_eq!(status["segments"].as_array().map_or(0, Vec::len), 0, "{status}");
}

#[test]
fn peers_that_only_connect_keep_no_sender_away() {
    let hosts = TwoHosts::new(MirrorReceiverOptions::new().connections(2));
    let connect = || TcpStream::connect(hosts.receiver.address()).expect("it listens");
    // A record says that the receiver is busy.
    let is_refused = |mut stream: &TcpStream| {
        stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a TCP socket");
        let mut record = Vec::new();
        stream.read_to_end(&mut record).expect("the receiver ends the connection");
        record.len() == 88 && record.starts_with(b"hbmirack") && record[12] == 1
    };
    let silent = [connect(), connect(), connect()];
    assert!(is_refused(&silent[0]), "the third one replaces the oldest");
    let _first = hosts.sender();
    assert!(is_refused(&silent[1]));
    let _second = hosts.sender();
    assert!(is_refused(&silent[2]));
    // Both have a sender, so there is none for a stranger.
    assert!(is_refused(&connect()));
    assert_eq!(hosts.receiver.counters().connections, 2);
}
