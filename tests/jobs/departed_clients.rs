//! Clients of a pool that end, or leave it, without the broker being told by a process descriptor.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};

use hostbuf_os::process;
use hostbuf_pool::{Pool, PoolMode, PoolOptions, Token};
use hostbuf_tests::{CommandOutput, Scratch, eventually, have, hostbuf, processes_with, program, skip};
use serde_json::{Value, json};

use crate::running_broker::{RunningBroker, SOON, socket_name};

/// A process that is killed on drop.
struct Victim(Child);

impl Drop for Victim {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns the segments of the pool, as the broker shows them, if there is a broker.
fn segments(pool: &Pool) -> Option<Value> {
    let status: Value = serde_json::from_str(&pool.status().ok()?).expect("JSON");
    Some(status["segments"].clone())
}

/// Starts a broker in a PID namespace of its own.
fn start_isolated(name: &str, path: &str) -> RunningBroker {
    let mut command = isolated();
    command.arg(hostbuf()).args(["broker", "--linger", "0", "--name", name, "--path", path]);
    RunningBroker::spawn(name.to_owned(), &mut command)
}

fn isolated() -> Command {
    let mut command = Command::new("bwrap");
    command.args(["--dev-bind", "/", "/", "--unshare-pid", "--proc", "/proc", "--die-with-parent"]);
    command
}

#[test]
fn a_client_that_executes_another_program_leaves_its_memory() {
    let broker = RunningBroker::start("exec", &["--linger", "0"]);
    let watcher = broker.connect("watcher");
    let mut command = Command::new(program("pool_client"));
    command.args([&broker.name, "4"]).env("HOSTBUF_POOL", broker.variable());
    let client = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
    let mut client = Victim(client);
    let mut output = BufReader::new(client.0.stdout.take().expect("it is piped"));
    output.read_line(&mut String::new()).expect("text");
    assert_eq!(segments(&watcher).expect("the broker answers")[0]["stage"], "live");
    let mut input = client.0.stdin.take().expect("it is piped");
    writeln!(input, "execute").expect("it reads");
    let pid = client.0.id() as i32;
    eventually("it executes cat", SOON, || process::name(pid) == "cat");
    eventually("its segment is freed", SOON, || segments(&watcher) == Some(json!([])));
    // The process goes on.
    writeln!(input, "copied").expect("it reads");
    let mut line = String::new();
    output.read_line(&mut line).expect("text");
    assert_eq!(line, "copied\n");
}

#[test]
fn a_broker_notices_the_earlier_end_of_a_client_in_another_pid_namespace() {
    if !have("bwrap") {
        return;
    }
    let outcome = CommandOutput::of(isolated().arg("true"));
    if outcome.status != 0 {
        skip(&format!("bwrap: {}", outcome.stderr.lines().next().unwrap_or("")));
        return;
    }
    let (name, folder) = (socket_name("unseen"), Scratch::new("unseen"));
    let path = folder.path("pool.socket");
    let broker = start_isolated(&name, &path);
    let mut command = Command::new(program("pool_frames"));
    command.args(["write", &path, "2"]);
    let producer = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
    let mut producer = Victim(producer);
    // The second line is the token of the first frame.
    let output = BufReader::new(producer.0.stdout.take().expect("it is piped"));
    let line = output.lines().nth(1).expect("it publishes").expect("text");
    let token: Token = line.parse().expect("a token");
    let reader = Pool::connect(PoolOptions::new("reader").mode(PoolMode::Required).path(&path));
    let reader = reader.expect("the broker listens");
    let block = reader.acquire(&token).expect("it is published");
    let status: Value = serde_json::from_str(&reader.status().expect("it answers")).expect("JSON");
    assert!(status["clients"].as_array().expect("a list").iter().all(|client| client["pid"] == 0));
    // The producer ends while there is no broker, and no other process can tell.
    drop(broker);
    let is_gone = || processes_with(&name).iter().all(|(_, command)| !command.contains("broker"));
    eventually("the broker has ended", SOON, is_gone);
    drop(producer);
    let _broker = start_isolated(&name, &path);
    let stage = || segments(&reader).map(|list| list[0]["stage"].clone());
    eventually("the producer counts as ended", SOON, || {
        stage().is_some_and(|stage| stage == "orphaned" || stage == "retired")
    });
    assert!(block.is_mapped() && block.as_slice()[..8] == [0; 8]);
    drop(block);
    eventually("the segment is freed", SOON, || segments(&reader) == Some(json!([])));
}
