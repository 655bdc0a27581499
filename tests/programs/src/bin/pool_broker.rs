//! Runs the broker of a pool until the end of standard input. Prints `listening` first.
//!
//!   pool_broker NAME [LIMIT]      the abstract name of the socket, and a limit in bytes

use std::io::Read;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use hostbuf_pool::{Broker, BrokerOptions};
use nix::sys::eventfd::EventFd;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let name = arguments.next().expect("usage: pool_broker NAME [LIMIT]");
    // Readers may be slow on a busy machine.
    let mut options = BrokerOptions::new().name(name).linger(Duration::from_secs(60));
    if let Some(limit) = arguments.next() {
        let limit = limit.parse().expect("LIMIT is a number of bytes");
        options = options.limit(limit).per_client(limit);
    }
    let mut broker = Broker::open(&options).expect("the name is free");
    println!("listening");
    let stop = Arc::new(EventFd::new().expect("an event descriptor"));
    let stopped = stop.clone();
    std::thread::spawn(move || {
        let ended = std::io::stdin().read_to_end(&mut Vec::new());
        stop.write(1).expect("it is open");
        ended.expect("standard input is readable");
    });
    broker.serve(stopped.as_fd()).expect("it serves");
}
