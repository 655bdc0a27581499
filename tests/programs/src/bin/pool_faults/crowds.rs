//! Very many connections.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use hostbuf_pool::ProducerOptions;
use nix::sys::resource::{Resource, getrlimit, setrlimit};

use crate::broken_promise::BrokenPromise;
use crate::broker_deaths::exchange;
use crate::child::eventually;
use crate::hello_answer::{HelloAnswer, say_hello};
use crate::test_broker::{BrokerProcess, status};
use hostbuf_programs::random::RandomInstants;

/// The limit of the broker's descriptors, the usual one.
const BROKER_DESCRIPTORS: u64 = 1024;
/// The time for which the clients go on beside the idle broker.
const IDLE: Duration = Duration::from_millis(200);
/// The largest CPU time of an idle broker in that time.
const IDLE_CPU: Duration = Duration::from_millis(10);

/// Connects `connections` times in turn, and then at once until the broker has no descriptor left.
pub(crate) fn connect(connections: u32, mut random: RandomInstants) -> Result<String, BrokenPromise> {
    let limit = |soft, hard| {
        setrlimit(Resource::RLIMIT_NOFILE, soft, hard).map_err(|errno| format!("setting a limit: {errno}"))
    };
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).map_err(|errno| errno.to_string())?;
    limit(BROKER_DESCRIPTORS.min(hard), hard)?;
    let broker = BrokerProcess::start(16 << 20)?;
    limit(hard, hard)?;
    let (camera, viewer) = (broker.connect("camera")?, broker.connect("viewer")?);
    let producer = camera.producer(&ProducerOptions::new(16 << 10, 8).retain(1));
    let producer = producer.map_err(|error| error.to_string())?;
    let mut stamp = 0;
    let mut go_on = |time| exchange((&producer, &viewer), None, Instant::now() + time, &mut stamp);
    go_on(Duration::from_millis(1))?;
    // An answer of the broker: it has closed its copies of what it has sent before.
    status(&viewer)?;
    let descriptors = broker.descriptors();
    for round in 0..connections {
        match say_hello(broker.name(), random.number())? {
            HelloAnswer::Welcome(connection) => drop(connection),
            HelloAnswer::Refused(why) => return Err(why),
        }
        if round % 64 == 0 {
            go_on(Duration::from_micros(50))?;
        }
    }
    let mut open: Vec<OwnedFd> = Vec::new();
    let refusal = loop {
        // The broker waits for descriptors for a while before it refuses a connection.
        let greeting = std::thread::scope(|scope| {
            let greeting = scope.spawn(|| say_hello(broker.name(), random.number()));
            while !greeting.is_finished() {
                go_on(Duration::from_micros(50))?;
            }
            greeting.join().map_err(|_| "a thread has panicked")?
        });
        match greeting? {
            HelloAnswer::Welcome(connection) => open.push(connection),
            HelloAnswer::Refused(why) => break why,
        }
        if open.len() as u64 > BROKER_DESCRIPTORS {
            return Err(format!("{} connections with {BROKER_DESCRIPTORS} descriptors", open.len()));
        }
    };
    if !refusal.contains("ulimit -n") {
        return Err(format!("a refusal without a remedy: {refusal}"));
    }
    let served = open.len();
    drop(open);
    eventually("the broker has as many descriptors as before", || broker.descriptors() == descriptors)?;
    let clients = status(&viewer)?["clients"].as_array().map_or(0, Vec::len);
    if clients != 2 {
        return Err(format!("{clients} clients are left"));
    }
    let before = cpu_time(&broker)?;
    go_on(IDLE)?;
    let taken = cpu_time(&broker)? - before;
    if taken > IDLE_CPU {
        return Err(format!("an idle broker ran for {taken:?} within {IDLE:?}"));
    }
    drop(camera.producer(&ProducerOptions::new(4096, 2)).map_err(|error| error.to_string())?);
    Ok(format!("{connections} in turn; {served} at once, the next one refused; {stamp} frames of clients"))
}

/// Returns the CPU time of the broker's threads. The kernel measures it; the times in
/// `/proc/PID/stat` may be estimates from samples every 10 ms.
fn cpu_time(broker: &BrokerProcess) -> Result<Duration, BrokenPromise> {
    let threads = format!("/proc/{}/task", broker.process().pid());
    let mut sum = Duration::ZERO;
    for thread in std::fs::read_dir(threads).map_err(|error| error.to_string())? {
        let path = thread.map_err(|error| error.to_string())?.path().join("schedstat");
        let text = std::fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        let first = text.split_ascii_whitespace().next().and_then(|word| word.parse().ok());
        sum += Duration::from_nanos(first.ok_or_else(|| format!("{}: {text}", path.display()))?);
    }
    Ok(sum)
}
