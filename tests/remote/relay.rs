//! A relay between the clients of a server and the server, which can pause in the middle of an
//! answer.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{setsockopt, sockopt};

/// The most bytes of an answer that the relay holds. The sockets hold more.
const BUFFER: usize = 64 << 10;

/// A request of a range that the relay has forwarded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RelayedRequest {
    pub range: Range<u64>,
    /// The number of bytes of the answer's body that were sent to the client.
    pub sent: u64,
}

/// A relay for one server on the loopback interface. A connection to it ends when that to the
/// server does, after the bytes that have arrived.
pub struct Relay {
    port: u16,
    state: Arc<RelayState>,
}

struct RelayState {
    server: u16,
    flow: Mutex<Flow>,
    changed: Condvar,
}

#[derive(Default)]
struct Flow {
    requests: Vec<RelayedRequest>,
    /// The number of bytes of bodies before the pause. `None` if there is no pause to come.
    left: Option<u64>,
    is_paused: bool,
    has_ended: bool,
}

impl Relay {
    /// Starts the relay for the server at a port.
    pub fn new(server: u16) -> Relay {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let port = listener.local_addr().expect("it is bound").port();
        let state = Arc::new(RelayState { server, flow: Mutex::default(), changed: Condvar::new() });
        let accepting = state.clone();
        thread::spawn(move || {
            for client in listener.incoming() {
                if accepting.flow().has_ended {
                    break;
                }
                let (client, state) = (client.expect("a connection"), accepting.clone());
                thread::spawn(move || state.forward(&client));
            }
        });
        Relay { port, state }
    }

    /// Returns the address and the port.
    pub fn host(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Pauses all connections after `bytes` further bytes of bodies, at least one.
    pub fn pause_after(&self, bytes: u64) {
        self.state.flow().left = Some(bytes);
    }

    /// Waits for the pause.
    pub fn wait_until_paused(&self) {
        let mut flow = self.state.flow();
        while !flow.is_paused {
            flow = self.state.changed.wait(flow).expect("no thread panics");
        }
    }

    /// Ends the pause.
    pub fn resume(&self) {
        let mut flow = self.state.flow();
        (flow.left, flow.is_paused) = (None, false);
        self.state.changed.notify_all();
    }

    /// Returns the requests so far.
    pub fn requests(&self) -> Vec<RelayedRequest> {
        self.state.flow().requests.clone()
    }
}

impl RelayState {
    fn flow(&self) -> MutexGuard<'_, Flow> {
        self.flow.lock().expect("no thread panics")
    }

    /// Forwards the requests of a connection, and the answers, until one side ends. Returns `None`
    /// at the end.
    fn forward(&self, client: &TcpStream) -> Option<()> {
        let server = TcpStream::connect((Ipv4Addr::LOCALHOST, self.server)).ok()?;
        // The rest of an answer stays in the server while the relay pauses.
        setsockopt(&server, sockopt::RcvBuf, &BUFFER).ok()?;
        let (mut requests, mut answers) = (BufReader::new(client), BufReader::new(&server));
        loop {
            wait_for_request(client, &server)?;
            let head = receive_head(&mut requests)?;
            let number = self.note(range(&head)?);
            (&server).write_all(head.as_bytes()).ok()?;
            let head = receive_head(&mut answers)?;
            let mut left: usize = header(&head, "content-length")?.parse().ok()?;
            (&*client).write_all(head.as_bytes()).ok()?;
            let mut buffer = vec![0; BUFFER];
            while left > 0 {
                let most = self.admitted(left.min(BUFFER));
                let received = answers.read(&mut buffer[..most]).ok().filter(|&bytes| bytes > 0)?;
                self.count(number, received);
                (&*client).write_all(&buffer[..received]).ok()?;
                left -= received;
            }
        }
    }

    fn note(&self, range: Range<u64>) -> usize {
        let mut flow = self.flow();
        flow.requests.push(RelayedRequest { range, sent: 0 });
        flow.requests.len() - 1
    }

    /// Waits for the end of a pause. Returns how many of `bytes` bytes may be sent.
    fn admitted(&self, bytes: usize) -> usize {
        let mut flow = self.flow();
        while flow.is_paused {
            flow = self.changed.wait(flow).expect("no thread panics");
        }
        flow.left.map_or(bytes, |left| bytes.min(left as usize))
    }

    /// Counts bytes of a body, and begins the pause after the last ones before it.
    fn count(&self, number: usize, bytes: usize) {
        let mut flow = self.flow();
        flow.requests[number].sent += bytes as u64;
        let left = flow.left.map(|left| left.saturating_sub(bytes as u64));
        flow.left = left;
        if left == Some(0) {
            flow.is_paused = true;
            self.changed.notify_all();
        }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.state.flow().has_ended = true;
        self.resume();
        // Ends the wait for a connection.
        let _ = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port));
    }
}

/// Waits until the client sends. Returns `None` if the server ends before.
fn wait_for_request(client: &TcpStream, server: &TcpStream) -> Option<()> {
    let mut both = [client, server].map(|stream| PollFd::new(stream.as_fd(), PollFlags::POLLIN));
    poll(&mut both, PollTimeout::NONE).ok()?;
    (both[1].any() == Some(false)).then_some(())
}

/// Receives the head of a message, with the empty line at its end.
fn receive_head(from: &mut impl BufRead) -> Option<String> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if from.read_line(&mut head).ok()? == 0 {
            return None;
        }
    }
    Some(head)
}

/// Returns the value of a header.
fn header<'h>(head: &'h str, name: &str) -> Option<&'h str> {
    let mut headers = head.lines().filter_map(|line| line.split_once(':'));
    headers.find(|(other, _)| other.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim())
}

/// Returns the range of a request.
fn range(head: &str) -> Option<Range<u64>> {
    let (first, last) = header(head, "range")?.strip_prefix("bytes=")?.split_once('-')?;
    Some(first.parse().ok()?..last.parse::<u64>().ok()? + 1)
}
