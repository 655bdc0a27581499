//! Brokers that do not answer, or refuse memory.

use std::os::fd::AsFd;
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::{Duration, Instant};

use hostbuf_mirror::{MirrorError, MirrorReceiver, MirrorReceiverOptions, MirrorSender};
use hostbuf_pool::{Broker, BrokerOptions, Pool, PoolMode, PoolOptions, ProducerOptions};
use nix::sys::eventfd::EventFd;

use crate::two_hosts::{TwoHosts, pool, publish, soon};

/// A broker in a thread of the test, which can be stopped: it then keeps its connections, and reads
/// nothing.
struct StoppableBroker<'b> {
    name: &'b str,
    stop: &'b EventFd,
    stopped: Receiver<()>,
    resume: Sender<()>,
}

impl StoppableBroker<'_> {
    fn connect(&self, client: &str) -> Pool {
        let options = PoolOptions::new(client).mode(PoolMode::Required).socket(self.name);
        Pool::connect(options.timeout(Duration::from_secs(20))).expect("a broker listens")
    }

    fn stop(&self) {
        self.stop.write(1).expect("an event");
        self.stopped.recv().expect("it serves");
    }

    fn resume(&self) {
        self.stop.read().expect("it was stopped");
        self.resume.send(()).expect("it was stopped");
    }
}

impl Drop for StoppableBroker<'_> {
    /// Ends the thread, also if the test has failed.
    fn drop(&mut self) {
        self.stop.write(1).expect("an event");
    }
}

/// Runs `test` with a broker that has these options.
fn with_broker(test_name: &str, options: BrokerOptions, test: impl FnOnce(&StoppableBroker<'_>)) {
    let name = format!("hostbuf-mirror-test-{test_name}-{}", std::process::id());
    let mut broker = Broker::open(&options.name(&name)).expect("the name is free");
    let stop = EventFd::new().expect("an event descriptor");
    std::thread::scope(|scope| {
        let (has_stopped, stopped) = mpsc::channel();
        let (resume, resumed) = mpsc::channel();
        let thread = scope.spawn({
            let stop = &stop;
            move || {
                loop {
                    broker.serve(stop.as_fd()).expect("it serves");
                    if has_stopped.send(()).is_err() || resumed.recv().is_err() {
                        return;
                    }
                }
            }
        });
        let broker = StoppableBroker { name: &name, stop: &stop, stopped, resume };
        test(&broker);
        drop(broker);
        thread.join().expect("no panic");
    });
}

#[test]
fn the_deadline_covers_a_segment_that_a_stopped_broker_does_not_attach() {
    with_broker("attach", BrokerOptions::new(), |broker| {
        let (camera, viewer) = (broker.connect("camera"), broker.connect("viewer"));
        let producer = camera.producer(&ProducerOptions::new(4096, 4)).expect("within the limit");
        let frame = publish(&producer, 0);
        let hosts = TwoHosts::new(MirrorReceiverOptions::new());
        let sender = hosts.sender();
        broker.stop();
        let begun = Instant::now();
        let error = sender
            .send(&viewer, &frame, begun + Duration::from_millis(200))
            .expect_err("nobody attaches the segment");
        assert!(matches!(error, MirrorError::Deadline { sent: 0, .. }), "{error}");
        assert!(begun.elapsed() < Duration::from_secs(10), "the pool's timeout is 20 s");
    });
}

/// Makes two hosts, of which the receiver's has this broker.
fn hosts_with(broker: &StoppableBroker<'_>, options: MirrorReceiverOptions) -> TwoHosts {
    let there = broker.connect("there");
    let receiver = MirrorReceiver::listen(&there, "127.0.0.1:0", options).expect("a free port");
    TwoHosts { here: pool("here"), there, receiver }
}

#[test]
fn frames_that_fit_do_not_wait_for_longer_blocks() {
    with_broker("longer-blocks", BrokerOptions::new(), |broker| {
        let hosts = hosts_with(broker, MirrorReceiverOptions::new());
        let (short, long) = (hosts.producer(4096, 4), hosts.producer(1 << 20, 2));
        let (sender, other): (MirrorSender, MirrorSender) = (hosts.sender(), hosts.sender());
        sender.send(&hosts.here, &publish(&short, 0), soon()).expect("a copy");
        broker.stop();
        let pending = other.begin(&hosts.here, &publish(&long, 0), soon()).expect("it is begun");
        for number in 1..200 {
            // Shorter than the pool's timeout.
            let until = Instant::now() + Duration::from_secs(10);
            sender.send(&hosts.here, &publish(&short, number), until).expect("a copy");
        }
        broker.resume();
        hosts.check(&pending.wait().expect("a copy"), 0);
    });
}

#[test]
fn longer_blocks_replace_shorter_ones_where_the_broker_has_no_space_for_both() {
    let options = BrokerOptions::new().limit(5 << 19).per_client(5 << 19).linger(Duration::ZERO);
    with_broker("no-space", options, |broker| {
        let hosts = hosts_with(broker, MirrorReceiverOptions::new().blocks(2));
        let sender = hosts.sender();
        for (number, bytes) in [(0, 1 << 19), (1, 1 << 20)] {
            let producer = hosts.producer(bytes, 2);
            let copy = sender.send(&hosts.here, &publish(&producer, number), soon()).expect("a copy");
            hosts.check(&copy, number);
        }
    });
}
