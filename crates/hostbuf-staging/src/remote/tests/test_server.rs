//! A server of HTTP/1.1 for tests: each request is answered by a function, which may break the
//! rules of the protocol.

use std::io::{BufRead, BufReader};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

use hostbuf_os::poison::IgnorePoison;
use nix::sys::socket::{setsockopt, sockopt};
use rustls::ServerConfig;

pub(super) use super::test_transport::AfterAnswer;
use super::test_transport::TestTransport;

/// A request that the server has received.
#[derive(Clone, Debug)]
pub(super) struct TestRequest {
    /// The number of requests before.
    pub(super) number: usize,
    /// The path with the query.
    pub(super) target: String,
    /// The headers, with names in small letters.
    pub(super) headers: Vec<(String, String)>,
}

impl TestRequest {
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(other, _)| other == name).map(|(_, value)| value.as_str())
    }

    /// Returns the requested range.
    pub(super) fn range(&self) -> Option<Range<u64>> {
        let (first, last) = self.header("range")?.strip_prefix("bytes=")?.split_once('-')?;
        Some(first.parse().ok()?..last.parse::<u64>().ok()? + 1)
    }
}

/// The bytes of an answer, and what follows them.
pub(super) struct TestAnswer {
    pub(super) bytes: Vec<u8>,
    pub(super) after: AfterAnswer,
}

impl TestAnswer {
    /// Makes an answer with the length of its body.
    pub(super) fn new(status: &str, headers: &[(&str, &str)], body: &[u8]) -> TestAnswer {
        let length = body.len().to_string();
        TestAnswer::of(status, &[headers, &[("Content-Length", &length)]].concat(), body)
    }

    /// Makes an answer of these headers only.
    pub(super) fn of(status: &str, headers: &[(&str, &str)], body: &[u8]) -> TestAnswer {
        let mut bytes = format!("HTTP/1.1 {status}\r\n").into_bytes();
        for (name, value) in headers {
            bytes.extend(format!("{name}: {value}\r\n").into_bytes());
        }
        bytes.extend(b"\r\n");
        bytes.extend(body);
        TestAnswer { bytes, after: AfterAnswer::Keep }
    }

    /// Answers a request of a range as a server should.
    pub(super) fn partial(content: &[u8], request: &TestRequest) -> TestAnswer {
        TestAnswer::partial_with(content, request, &[])
    }

    /// Answers a request of a range with further headers.
    pub(super) fn partial_with(
        content: &[u8],
        request: &TestRequest,
        headers: &[(&str, &str)],
    ) -> TestAnswer {
        let total = content.len() as u64;
        let Some(range) = request.range() else { return TestAnswer::new("200 OK", headers, content) };
        if range.start >= total {
            let range = format!("bytes */{total}");
            return TestAnswer::new("416 Range Not Satisfiable", &[("Content-Range", &range)], b"");
        }
        let range = range.start..range.end.min(total);
        let stated = format!("bytes {}-{}/{total}", range.start, range.end - 1);
        let body = &content[range.start as usize..range.end as usize];
        TestAnswer::new("206 Partial Content", &[headers, &[("Content-Range", &stated)]].concat(), body)
    }

    /// Leaves out the last `bytes` bytes.
    pub(super) fn cut(mut self, bytes: usize, after: AfterAnswer) -> TestAnswer {
        self.bytes.truncate(self.bytes.len() - bytes);
        TestAnswer { after, ..self }
    }

    pub(super) fn then(self, after: AfterAnswer) -> TestAnswer {
        TestAnswer { after, ..self }
    }
}

type AnswerFunction = dyn Fn(&TestRequest) -> TestAnswer + Send + Sync;

struct ServerState {
    answer: Box<AnswerFunction>,
    requests: Mutex<Vec<TestRequest>>,
    connections: Mutex<Vec<TcpStream>>,
    has_ended: AtomicBool,
    tls: Option<Arc<ServerConfig>>,
}

/// A server on the loopback interface, which ends when it is dropped.
pub(super) struct TestServer {
    address: SocketAddr,
    state: Arc<ServerState>,
    acceptor: Option<JoinHandle<()>>,
}

impl TestServer {
    pub(super) fn new(answer: impl Fn(&TestRequest) -> TestAnswer + Send + Sync + 'static) -> TestServer {
        TestServer::with_settings(answer, None)
    }

    /// Makes a server with TLS.
    pub(super) fn with_tls(
        answer: impl Fn(&TestRequest) -> TestAnswer + Send + Sync + 'static,
        settings: ServerConfig,
    ) -> TestServer {
        TestServer::with_settings(answer, Some(Arc::new(settings)))
    }

    fn with_settings(
        answer: impl Fn(&TestRequest) -> TestAnswer + Send + Sync + 'static,
        tls: Option<Arc<ServerConfig>>,
    ) -> TestServer {
        let listener = TcpListener::bind("127.0.0.1:0").expect("the loopback interface exists");
        let address = listener.local_addr().expect("it is bound");
        let (requests, connections) = (Mutex::default(), Mutex::default());
        let state = ServerState {
            answer: Box::new(answer),
            requests,
            connections,
            has_ended: AtomicBool::new(false),
            tls,
        };
        let state = Arc::new(state);
        let accepting = state.clone();
        let acceptor = thread::spawn(move || accept(&listener, &accepting));
        TestServer { address, state, acceptor: Some(acceptor) }
    }

    /// Serves an object in the way of a right server.
    pub(super) fn of_content(content: Vec<u8>) -> TestServer {
        TestServer::new(move |request| TestAnswer::partial(&content, request))
    }

    /// Returns the address of a path.
    pub(super) fn url(&self, path: &str) -> String {
        let scheme = if self.state.tls.is_some() { "https" } else { "http" };
        format!("{scheme}://{}{path}", self.address)
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the requests so far.
    pub(super) fn requests(&self) -> Vec<TestRequest> {
        self.state.requests.lock().ignore_poison().clone()
    }

    /// Returns the number of connections so far.
    pub(super) fn connections(&self) -> usize {
        self.state.connections.lock().ignore_poison().len()
    }
}

fn accept(listener: &TcpListener, state: &Arc<ServerState>) {
    let mut threads = Vec::new();
    for stream in listener.incoming() {
        let stream = stream.expect("a connection");
        if state.has_ended.load(Ordering::Acquire) {
            break;
        }
        state.connections.lock().ignore_poison().push(stream.try_clone().expect("a descriptor"));
        let state = state.clone();
        threads.push(thread::spawn(move || serve(stream, &state)));
    }
    for thread in threads {
        thread.join().expect("no answer panics");
    }
}

/// Answers the requests of a connection.
fn serve(stream: TcpStream, state: &ServerState) {
    let tcp = stream.try_clone().expect("a descriptor");
    let mut reader = BufReader::new(TestTransport::new(stream, state.tls.clone()));
    while let Some(request) = receive(&mut reader, state) {
        let answer = (state.answer)(&request);
        // The client may have closed the connection.
        if reader.get_mut().send(&answer.bytes, answer.after).is_err() {
            return;
        }
        match answer.after {
            AfterAnswer::Keep | AfterAnswer::UnrequestedRecord { .. } => {}
            AfterAnswer::Close | AfterAnswer::CloseNotify | AfterAnswer::ChangedRecord => {
                let _ = tcp.shutdown(Shutdown::Both);
                return;
            }
            AfterAnswer::Reset => {
                let at_once = libc::linger { l_onoff: 1, l_linger: 0 };
                setsockopt(&tcp, sockopt::Linger, &at_once).expect("a socket");
                // The copy in the list of connections keeps the socket open.
                let address = tcp.peer_addr().ok();
                state.connections.lock().ignore_poison().retain(|other| other.peer_addr().ok() != address);
                return;
            }
            // The end of the server, or of the client, ends the wait.
            AfterAnswer::Stall | AfterAnswer::StallAfterNotify => {
                while reader.fill_buf().is_ok_and(|bytes| !bytes.is_empty()) {}
            }
        }
    }
}

fn receive(reader: &mut impl BufRead, state: &ServerState) -> Option<TestRequest> {
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        match line.trim_end() {
            "" => break,
            line => lines.push(line.to_owned()),
        }
    }
    let target = lines.first()?.split(' ').nth(1)?.to_owned();
    let headers = lines.iter().skip(1).filter_map(|line| line.split_once(':'));
    let headers = headers.map(|(name, value)| (name.to_lowercase(), value.trim().to_owned())).collect();
    let mut requests = state.requests.lock().ignore_poison();
    let request = TestRequest { number: requests.len(), target, headers };
    requests.push(request.clone());
    Some(request)
}

impl Drop for TestServer {
    fn drop(&mut self) {
        self.state.has_ended.store(true, Ordering::Release);
        // Ends the wait for a connection.
        let _ = TcpStream::connect(self.address);
        for connection in self.state.connections.lock().ignore_poison().iter() {
            // The other side may have closed it.
            let _ = connection.shutdown(Shutdown::Both);
        }
        let ended = self.acceptor.take().map(JoinHandle::join);
        if let (Some(Err(panic)), false) = (ended, thread::panicking()) {
            std::panic::resume_unwind(panic);
        }
    }
}
