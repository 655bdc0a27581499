//! A broker that runs: the command `hostbuf broker`.

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::time::Duration;

use hostbuf_pool::{Pool, PoolMode, PoolOptions, ProducerOptions};
use hostbuf_tests::hostbuf;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::stopped_child::stop_child;

/// The time within which a broker reacts, also on a machine without free cores.
pub const SOON: Duration = Duration::from_secs(20);

/// Returns a name for the socket of a test's broker.
pub fn socket_name(test: &str) -> String {
    format!("hostbuf-test-{test}-{}", std::process::id())
}

/// A broker that runs. It is killed on drop.
pub struct RunningBroker {
    /// The abstract name of its socket.
    pub name: String,
    /// The line that it has printed.
    pub line: String,
    child: Child,
    output: BufReader<ChildStdout>,
}

impl RunningBroker {
    /// Starts `hostbuf broker` with a socket for this test and `arguments`, and waits until it
    /// listens.
    pub fn start(test: &str, arguments: &[&str]) -> RunningBroker {
        let name = socket_name(test);
        let mut command = Command::new(hostbuf());
        command.args(["broker", "--name", &name]).args(arguments);
        RunningBroker::spawn(name, &mut command)
    }

    /// Starts `command`, which becomes a broker at the socket `name`, and waits until it listens.
    pub fn spawn(name: String, command: &mut Command) -> RunningBroker {
        let mut child = command.stdout(Stdio::piped()).spawn().expect("the command starts");
        let mut output = BufReader::new(child.stdout.take().expect("it is piped"));
        let mut line = String::new();
        output.read_line(&mut line).expect("a line of text");
        assert!(line.starts_with("hostbuf broker: listening on "), "{line}");
        RunningBroker { name, line, child, output }
    }

    /// Returns the process ID.
    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    /// Returns the options of a client with this name.
    pub fn options(&self, client: &str) -> PoolOptions {
        PoolOptions::new(client).mode(PoolMode::Required).socket(&self.name)
    }

    /// Connects to the broker.
    pub fn connect(&self, client: &str) -> Pool {
        Pool::connect(self.options(client)).expect("the broker listens")
    }

    /// Returns the value of `HOSTBUF_POOL` that selects the broker.
    pub fn variable(&self) -> String {
        format!("@{}", self.name)
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.pid()), signal).expect("it runs");
    }

    /// Stops the broker, and waits until it runs no more.
    pub fn stop(&self) {
        stop_child(self.child.id());
    }

    /// Waits for the end of the broker, and returns its status and what it has printed after its
    /// first line.
    pub fn wait(mut self) -> (ExitStatus, String) {
        let mut rest = String::new();
        std::io::Read::read_to_string(&mut self.output, &mut rest).expect("text");
        (self.child.wait().expect("a child"), rest)
    }
}

impl Drop for RunningBroker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the options of a producer of 4 blocks of 1 MiB.
pub fn small_blocks(stream: &str) -> ProducerOptions {
    ProducerOptions::new(1 << 20, 4).stream(stream)
}
