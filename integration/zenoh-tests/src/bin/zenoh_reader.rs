//! A process that subscribes to frames, and reports each one.
//!
//! `zenoh_reader ENDPOINT HELD [BROKER]`: ENDPOINT is the path of the producer's socket, HELD the
//! number of frames to hold, and BROKER the name of the broker's socket. Without BROKER the session
//! has zenoh's own clients only. It prints `ready`, and for each frame its number, its length,
//! whether zenoh has passed shared memory, whether it lies in the pool, and the torn stamps.

use std::collections::VecDeque;

use hostbuf_zenoh::client_storage;
use zenoh::Wait;
use zenoh_tests::{BrokerThread, KEY, config, is_in_pool, torn_stamps};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let held: usize = arguments[1].parse().expect("a number");
    let mut builder = zenoh::open(config("connect", &arguments[0]));
    // Before the session, which maps the pool's blocks.
    let pool = arguments.get(2).map(|name| BrokerThread::connect_to(name, "reader"));
    if let Some(pool) = &pool {
        builder = builder.with_shm_clients(client_storage(pool).expect("the broker answers"));
    }
    let session = builder.wait().expect("the producer listens");
    let subscriber = session.declare_subscriber(KEY).wait().expect("a subscriber");
    println!("ready");
    let mut samples = VecDeque::new();
    while let Ok(sample) = subscriber.recv() {
        let bytes = sample.payload().to_bytes();
        let (number, torn) = torn_stamps(&bytes);
        let is_shared = sample.payload().as_shm().is_some();
        let in_pool = is_in_pool(bytes.as_ptr());
        println!("{number} {} {} {} {torn}", bytes.len(), u8::from(is_shared), u8::from(in_pool));
        drop(bytes);
        samples.push_back((number, sample));
        // The held frames must not have changed.
        for (number, sample) in &samples {
            let again = torn_stamps(&sample.payload().to_bytes());
            assert_eq!(again, (*number, 0), "a held frame has changed");
        }
        while samples.len() > held {
            samples.pop_front();
        }
    }
}
