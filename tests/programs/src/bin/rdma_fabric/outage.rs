//! A network that loses everything while several threads put.

use std::time::{Duration, Instant};

use hostbuf_programs::checks::{NetworkFault, Outcome, expect, text};
use hostbuf_rdma::{Fabric, FabricOptions, HostIndex, Pending};

use crate::setup::{FabricSetup, TIMEOUT, connect};

/// The number of outages.
const ROUNDS: usize = 8;
/// The number of threads that put.
const THREADS: usize = 3;
/// The number of bytes of a put.
const BYTES: usize = 64;

/// Loses all packets while several threads put over one connection: each of them gets an error
/// within the time limits of the device, also for requests that were posted after the failure.
/// Later puts connect again.
pub(crate) fn outage(setup: &FabricSetup) -> Outcome {
    let options = FabricOptions::default()
        .depth(8)
        .retries(1)
        .ack_timeout(Duration::from_millis(10))
        .connect_timeout(Duration::from_secs(2));
    let fabric = connect(&setup.world, &setup.buffer, options).map_err(text)?;
    let mut longest = Duration::ZERO;
    for round in 0..ROUNDS {
        if setup.own == 0 {
            longest = longest.max(lose_all(&fabric).map_err(|why| format!("outage {round}: {why}"))?);
            connect_again(&fabric)?;
        }
        setup.barrier()?;
    }
    Ok(format!("{ROUNDS} times, all {THREADS} threads had an error within {longest:.1?}"))
}

/// Returns the time after which the last thread had its error.
fn lose_all(fabric: &Fabric) -> Result<Duration, String> {
    std::thread::scope(|scope| {
        let threads: Vec<_> =
            (0..THREADS).map(|thread| scope.spawn(move || put_until_error(fabric, thread))).collect();
        let fault = NetworkFault::new("loss 100%")?;
        let begun = Instant::now();
        threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
        drop(fault);
        expect(begun.elapsed() < TIMEOUT, format!("a thread had its error after {:?}", begun.elapsed()))?;
        Ok(begun.elapsed())
    })
}

fn put_until_error(fabric: &Fabric, thread: usize) {
    let region = |n: usize| (thread * 64 + n) * BYTES..(thread * 64 + n + 1) * BYTES;
    let put = || -> hostbuf::Result<()> {
        match thread {
            0 => fabric.put(region(0), HostIndex(1))?.wait(),
            1 => fabric.put_many((0..64).map(region), HostIndex(1))?.wait(),
            _ => {
                let mut put = fabric.put(region(0), HostIndex(1))?;
                while !put.test()? {
                    std::thread::yield_now();
                }
                Ok(())
            }
        }
    };
    while put().is_ok() {}
}

fn connect_again(fabric: &Fabric) -> Result<(), String> {
    let until = Instant::now() + TIMEOUT;
    loop {
        match fabric.put(0..BYTES, HostIndex(1)).and_then(Pending::wait) {
            Ok(()) => return Ok(()),
            Err(error) => expect(Instant::now() < until, format!("no connection afterwards: {error}"))?,
        }
    }
}
