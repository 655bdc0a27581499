//! A process that reads frames: src/bin/zenoh_reader.rs.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// The report of a reader about one frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
// Exhaustive: tests compare all of it.
pub struct ReaderLine {
    /// The number in the stamps of the frame.
    pub number: u64,
    /// The length of the frame in bytes.
    pub length: usize,
    /// True if zenoh has passed shared memory.
    pub is_shared: bool,
    /// True if the frame lies in the pool.
    pub is_in_pool: bool,
    /// The number of stamps that differ from the first one.
    pub torn: usize,
}

/// A process that reads frames. It is killed with this object.
#[derive(Debug)]
pub struct ReaderProcess {
    child: Child,
    lines: Receiver<String>,
}

impl ReaderProcess {
    /// Starts the program `program`, and waits until it has subscribed. `broker` is the socket of
    /// its broker, if it shall have one, and `held` the number of frames that it holds.
    ///
    /// # Panics
    /// If it does not start.
    #[must_use]
    pub fn start(program: &str, endpoint: &Path, broker: Option<&str>, held: usize) -> ReaderProcess {
        let mut command = Command::new(program);
        command.arg(endpoint).arg(held.to_string()).args(broker).stdout(Stdio::piped());
        let mut child = command.spawn().expect("the reader starts");
        let output = child.stdout.take().expect("it is piped");
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        let reader = ReaderProcess { child, lines };
        assert_eq!(reader.next_line(), "ready");
        reader
    }

    fn next_line(&self) -> String {
        self.lines.recv_timeout(Duration::from_secs(30)).expect("the reader reports")
    }

    /// Returns the next report.
    ///
    /// # Panics
    /// If there is none within 30 seconds.
    #[must_use]
    pub fn next(&self) -> ReaderLine {
        parse(&self.next_line())
    }

    /// Returns the next report, if there is one already.
    #[must_use]
    pub fn try_next(&self) -> Option<ReaderLine> {
        self.lines.try_recv().ok().map(|line| parse(&line))
    }

    /// Sends a signal.
    ///
    /// # Panics
    /// If the process has ended.
    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id() as i32), signal).expect("the reader runs");
    }

    /// Returns the number of segments that the process has mapped.
    ///
    /// # Panics
    /// If the process has ended.
    #[must_use]
    pub fn mapped_segments(&self) -> usize {
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", self.child.id()));
        maps.expect("the reader runs").matches("hostbuf-pool-data").count()
    }

    /// Kills the process and waits for its end.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for ReaderProcess {
    fn drop(&mut self) {
        self.kill();
    }
}

fn parse(line: &str) -> ReaderLine {
    let numbers: Vec<u64> =
        line.split(' ').map(|number| number.parse().expect("a report of numbers")).collect();
    let [number, length, shared, in_pool, torn] = numbers[..] else { panic!("{line}") };
    ReaderLine {
        number,
        length: length as usize,
        is_shared: shared == 1,
        is_in_pool: in_pool == 1,
        torn: torn as usize,
    }
}
