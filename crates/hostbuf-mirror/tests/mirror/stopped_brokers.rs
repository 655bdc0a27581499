//! Brokers that do not answer.

use std::os::fd::AsFd;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use hostbuf_mirror::{MirrorError, MirrorReceiverOptions};
use hostbuf_pool::{Broker, BrokerOptions, Pool, PoolMode, PoolOptions, ProducerOptions};
use nix::sys::eventfd::EventFd;

use crate::two_hosts::{TwoHosts, publish};

#[test]
fn the_deadline_covers_a_segment_that_a_stopped_broker_does_not_attach() {
    let name = format!("hostbuf-mirror-test-{}", std::process::id());
    let mut broker = Broker::open(&BrokerOptions::new().name(&name)).expect("the name is free");
    let stop = EventFd::new().expect("an event descriptor");
    std::thread::scope(|scope| {
        let (ended, end) = mpsc::channel::<()>();
        let serving = scope.spawn({
            let stop = &stop;
            move || {
                broker.serve(stop.as_fd()).expect("it serves");
                // It keeps its connections, and reads nothing.
                let _ = end.recv();
            }
        });
        let connect = |client: &str| {
            let options = PoolOptions::new(client).mode(PoolMode::Required).socket(&name);
            Pool::connect(options.timeout(Duration::from_secs(20))).expect("a broker listens")
        };
        let (camera, viewer) = (connect("camera"), connect("viewer"));
        let producer = camera.producer(&ProducerOptions::new(4096, 4)).expect("within the limit");
        let frame = publish(&producer, 0);
        let hosts = TwoHosts::new(MirrorReceiverOptions::new());
        let sender = hosts.sender();
        stop.write(1).expect("an event");
        let begun = Instant::now();
        let error = sender
            .send(&viewer, &frame, begun + Duration::from_millis(200))
            .expect_err("nobody attaches the segment");
        assert!(matches!(error, MirrorError::Deadline { sent: 0, .. }), "{error}");
        assert!(begun.elapsed() < Duration::from_secs(10), "the pool's timeout is 20 s");
        drop(ended);
        serving.join().expect("no panic");
    });
}
