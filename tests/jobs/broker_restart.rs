//! A broker that takes over from one that was killed.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use hostbuf_pool::{Pool, PoolMode, PoolOptions, Token};
use hostbuf_tests::{Scratch, eventually, hostbuf, program};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::running_broker::{RunningBroker, SOON, socket_name};
use crate::stopped_child::stop_child;

/// A process that is killed on drop, also while it is stopped.
struct StoppableChild(Child);

impl StoppableChild {
    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.0.id() as i32), signal).expect("it runs");
    }
}

impl Drop for StoppableChild {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(name: &str, path: &str) -> RunningBroker {
    let mut command = Command::new(hostbuf());
    RunningBroker::spawn(name.to_owned(), command.args(["broker", "--name", name, "--path", path]))
}

#[test]
fn a_stream_keeps_its_name_if_a_reader_reports_it_first() {
    let (name, folder) = (socket_name("restart"), Scratch::new("restart"));
    let path = folder.path("pool.socket");
    let broker = start(&name, &path);
    let mut command = Command::new(program("pool_frames"));
    command.args(["write", &path, "2"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut camera = StoppableChild(command.spawn().expect("it starts"));
    // The second line is the token of the first frame.
    let output = BufReader::new(camera.0.stdout.take().expect("it is piped"));
    let line = output.lines().nth(1).expect("it publishes").expect("text");
    let token: Token = line.parse().expect("a token");
    let viewer = Pool::connect(PoolOptions::new("viewer").mode(PoolMode::Required).path(&path));
    let viewer = viewer.expect("the broker listens");
    let _block = viewer.acquire(&token).expect("it is published");
    stop_child(camera.0.id());
    drop(broker);
    let _successor = start(&name, &path);
    let segment = || {
        let status: Value = serde_json::from_str(&viewer.status().ok()?).expect("JSON");
        let segment = &status["segments"][0];
        Some((segment["stage"].clone(), segment["stream"].clone()))
    };
    eventually("the viewer reports it", SOON, || segment() == Some((json!("adopted"), json!(""))));
    camera.signal(Signal::SIGCONT);
    eventually("the camera reports it", SOON, || segment() == Some((json!("live"), json!("camera"))));
}
