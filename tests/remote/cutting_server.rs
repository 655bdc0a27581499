//! A server of one object that cuts its answers at random.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

use hostbuf_programs::random::RandomInstants;

/// The object, and the state of its server.
struct CutObject {
    content: Vec<u8>,
    has_ended: AtomicBool,
    is_cutting: AtomicBool,
    cuts: AtomicU64,
    random: Mutex<RandomInstants>,
    /// The open connections, by their numbers.
    connections: Mutex<BTreeMap<u64, TcpStream>>,
}

/// A server on the loopback interface, which ends when it is dropped. It answers each request with
/// a part of the requested range, or not at all, or says that it is busy, once
/// [`cut`](CuttingServer::cut) was called.
pub(super) struct CuttingServer {
    address: SocketAddr,
    state: Arc<CutObject>,
    acceptor: Option<JoinHandle<()>>,
}

impl CuttingServer {
    pub(super) fn new(content: Vec<u8>, seed: u64) -> CuttingServer {
        let listener = TcpListener::bind("127.0.0.1:0").expect("the loopback interface exists");
        let address = listener.local_addr().expect("it is bound");
        let state = Arc::new(CutObject {
            content,
            has_ended: AtomicBool::new(false),
            is_cutting: AtomicBool::new(false),
            cuts: AtomicU64::new(0),
            random: Mutex::new(RandomInstants::new(seed)),
            connections: Mutex::default(),
        });
        let of_thread = state.clone();
        let acceptor = thread::spawn(move || accept(&listener, &of_thread));
        CuttingServer { address, state, acceptor: Some(acceptor) }
    }

    /// Returns the address of the object.
    pub(super) fn url(&self) -> String {
        format!("http://{}/object", self.address)
    }

    /// Cuts answers from now on, or no longer.
    pub(super) fn cut(&self, is_cutting: bool) {
        self.state.is_cutting.store(is_cutting, Ordering::SeqCst);
    }

    /// Returns the number of answers that were cut.
    pub(super) fn cuts(&self) -> u64 {
        self.state.cuts.load(Ordering::SeqCst)
    }
}

impl Drop for CuttingServer {
    fn drop(&mut self) {
        self.state.has_ended.store(true, Ordering::SeqCst);
        // Ends the wait for a connection.
        let _ = TcpStream::connect(self.address);
        for connection in self.state.connections.lock().expect("no panic").values() {
            // The other side may have closed it.
            let _ = connection.shutdown(Shutdown::Both);
        }
        let ended = self.acceptor.take().map(JoinHandle::join);
        if let (Some(Err(panic)), false) = (ended, thread::panicking()) {
            std::panic::resume_unwind(panic);
        }
    }
}

fn accept(listener: &TcpListener, state: &Arc<CutObject>) {
    let mut threads: Vec<JoinHandle<()>> = Vec::new();
    for (number, stream) in (0..).zip(listener.incoming()) {
        let stream = stream.expect("a connection");
        if state.has_ended.load(Ordering::SeqCst) {
            break;
        }
        let copy = stream.try_clone().expect("a descriptor");
        state.connections.lock().expect("no panic").insert(number, copy);
        let state = state.clone();
        threads.retain(|thread| !thread.is_finished());
        threads.push(thread::spawn(move || serve(stream, number, &state)));
    }
    for thread in threads {
        thread.join().expect("no answer panics");
    }
}

/// Answers the requests of a connection.
fn serve(stream: TcpStream, number: u64, state: &CutObject) {
    let mut reader = BufReader::new(stream);
    while let Some(range) = requested_range(&mut reader)
        && answer(reader.get_mut(), state, range)
    {}
    // The client may have closed it.
    let _ = reader.get_ref().shutdown(Shutdown::Both);
    state.connections.lock().expect("no panic").remove(&number);
}

/// Receives a request. Returns the first byte and the last one, if it states them.
fn requested_range(reader: &mut impl BufRead) -> Option<Option<(usize, usize)>> {
    let (mut range, mut is_first) = (None, true);
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        let line = line.trim_end().to_ascii_lowercase();
        if line.is_empty() && !is_first {
            return Some(range);
        }
        is_first = false;
        if let Some(bounds) = line.strip_prefix("range: bytes=") {
            let (first, last) = bounds.split_once('-')?;
            range = Some((first.parse().ok()?, last.parse().ok()?));
        }
    }
}

/// Answers a request. Returns whether the connection stays.
fn answer(stream: &mut TcpStream, state: &CutObject, range: Option<(usize, usize)>) -> bool {
    let total = state.content.len();
    let (first, last) = range.unwrap_or((0, total - 1));
    let last = last.min(total - 1);
    let body = &state.content[first.min(total)..=last];
    let head = format!(
        "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes {first}-{last}/{total}\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    let answer = [head.as_bytes(), body].concat();
    let (kind, sent) = {
        let mut random = state.random.lock().expect("no panic");
        (random.below(4), random.below(answer.len() as u64) as usize)
    };
    if !state.is_cutting.load(Ordering::SeqCst) || kind == 0 {
        return stream.write_all(&answer).is_ok();
    }
    state.cuts.fetch_add(1, Ordering::SeqCst);
    let busy = b"HTTP/1.1 503 Busy\r\nRetry-After: 0\r\nContent-Length: 0\r\n\r\n";
    match kind {
        1 => stream.write_all(busy).is_ok(),
        _ => {
            // The client may have closed it.
            let _ = stream.write_all(&answer[..sent]);
            false
        }
    }
}
