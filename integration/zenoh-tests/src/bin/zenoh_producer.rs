//! A process that sends frames in blocks of a pool until it is killed.
//!
//! `zenoh_producer ENDPOINT BROKER FIRST`: ENDPOINT is the path of the receiver's socket, BROKER
//! the name of the broker's socket, and FIRST the number of the first frame.

use std::time::Duration;

use hostbuf_pool::ProducerOptions;
use hostbuf_zenoh::{PoolProvider, ProviderError};
use zenoh::Wait;
use zenoh::qos::CongestionControl;
use zenoh_tests::{BrokerThread, FRAME_BYTES, KEY, config, eventually, stamp};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let first: u64 = arguments[2].parse().expect("a number");
    let pool = BrokerThread::connect_to(&arguments[1], "camera");
    let options = ProducerOptions::new(FRAME_BYTES as u64, 4);
    let provider = PoolProvider::new(&pool, &options).expect("a segment");
    let session = zenoh::open(config("connect", &arguments[0])).wait().expect("the receiver listens");
    let publisher = session.declare_publisher(KEY).congestion_control(CongestionControl::Block);
    let publisher = publisher.wait().expect("a publisher");
    eventually("the receiver subscribes", || {
        publisher.matching_status().wait().expect("a status").matching()
    });
    for number in first.. {
        let mut frame = loop {
            match provider.alloc(FRAME_BYTES) {
                Ok(frame) => break frame,
                Err(ProviderError::Exhausted) => std::thread::sleep(Duration::from_millis(1)),
                Err(error) => panic!("{error}"),
            }
        };
        stamp(&mut frame, number);
        publisher.put(frame).wait().expect("it is sent");
    }
}
