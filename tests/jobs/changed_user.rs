//! A client of a root broker that becomes another user.

use std::fs::{self, File};
use std::process::Stdio;

use hostbuf_tests::eventually;
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::other_user::OtherUser;
use crate::running_broker::{RunningBroker, SOON, small_blocks};

/// Opens the data file of the only segment of this process.
fn data_file() -> File {
    let entries = fs::read_dir("/proc/self/fd").expect("/proc is there").flatten();
    let found = entries.map(|entry| entry.path()).find(|path| {
        fs::read_link(path).is_ok_and(|target| target.to_string_lossy().contains("hostbuf-pool-data"))
    });
    File::open(found.expect("the producer has its file")).expect("it is readable")
}

#[test]
fn memory_of_a_process_that_has_become_another_user_counts() {
    let Some(other) = OtherUser::new("a client that has become another user") else { return };
    let broker = RunningBroker::start("rights", &[]);
    let client = broker.connect("camera");
    let producer = client.producer(&small_blocks("camera")).expect("there is memory");
    // It ends with its standard input, and writes nothing.
    let mut command = other.command("cat");
    let mut holder = command.stdin(Stdio::piped()).stdout(data_file()).spawn().expect("it starts");
    broker.signal(Signal::SIGKILL);
    drop((producer, client, broker, command));
    let successor = RunningBroker::start("rights", &[]);
    let client = successor.connect("client");
    let unaccounted = || {
        let status: Value = serde_json::from_str(&client.status().expect("it answers")).expect("JSON");
        status["unaccounted"].clone()
    };
    let found = unaccounted();
    drop(holder.stdin.take());
    assert!(holder.wait().expect("it ends").success());
    assert_eq!((found[0]["pid"].as_u64(), found[1].is_null()), (Some(holder.id().into()), true), "{found}");
    eventually("nothing is unaccounted for", SOON, || unaccounted() == Value::Array(Vec::new()));
    assert!(client.producer(&small_blocks("client")).is_ok());
}
