//! Threads that make many requests at a time.

use std::mem::{forget, take};
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};

use bytes::{Bytes, BytesMut};
use hostbuf_os::fork_guard::ForkGuard;
use hostbuf_os::thread::{self, Thread};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::timeout;
use tracing::{Instrument, Span};

use super::connection_pool::LONGEST_IDLE;
use super::connection_runtime::ConnectionRuntime;
use super::http_client::HttpClients;
use super::range_client::RangeClient;
use super::range_stream::RangeStream;
use super::remote_error::{RemoteError, RemoteProblem};
use super::remote_object::RemoteObject;

/// The shortest part into which a read is divided, in bytes.
const SHORTEST_PART: u64 = 1 << 20;
/// The length of a buffer that bytes are received in, and the least room for them.
const BUFFER: usize = 256 << 10;
const SHORTEST_BUFFER: usize = 16 << 10;

/// A request of a part of a read.
struct PartRequest {
    object: Arc<RemoteObject>,
    range: Range<u64>,
    parts: mpsc::Sender<Result<ReceivedPart, RemoteError>>,
    /// The sender is gone if the read has ended, by the failure of another part.
    reading: watch::Receiver<()>,
    /// The span of the thread that reads.
    span: Span,
}

/// Bytes that have arrived.
struct ReceivedPart {
    offset: u64,
    bytes: Bytes,
}

/// A set of threads that make many requests at a time, each with connections of its own.
pub(super) struct Reactors {
    queues: Vec<UnboundedSender<PartRequest>>,
    threads: Vec<Thread>,
    next: AtomicUsize,
    requests: usize,
    fork_guard: ForkGuard,
}

impl Reactors {
    /// Starts the threads.
    pub(super) fn new(
        threads: usize,
        requests: usize,
        clients: &HttpClients,
    ) -> Result<Reactors, RemoteProblem> {
        let (next, fork_guard) = (AtomicUsize::new(0), ForkGuard::current());
        let mut reactors = Reactors { queues: Vec::new(), threads: Vec::new(), next, requests, fork_guard };
        for _ in 0..threads {
            let connections = ConnectionRuntime::new(clients, requests)?;
            let (queue, queued) = unbounded_channel();
            let serving = move || serve(&connections, queued, requests);
            let thread = thread::spawn(c"hostbuf-reactor", serving);
            let thread = thread.map_err(|error| RemoteProblem::Option {
                why: format!("mode: a thread cannot be started (raise ulimit -u, or request fewer): {error}"),
            })?;
            reactors.queues.push(queue);
            reactors.threads.push(thread);
        }
        Ok(reactors)
    }

    /// Reads a range of an object by several requests at a time, and waits for them.
    pub(super) fn read(
        &self,
        object: &Arc<RemoteObject>,
        range: Range<u64>,
        into: &mut [u8],
    ) -> Result<(), RemoteError> {
        if !self.fork_guard.is_current() {
            return Err(RemoteError::before(&object.shown, RemoteProblem::Forked));
        }
        let bytes = range.end - range.start;
        let most = (self.queues.len() * self.requests) as u64;
        let part = bytes.div_ceil(most).max(SHORTEST_PART);
        let (parts, received) = mpsc::channel();
        // Dropped at the end of the read.
        let (_is_reading, reading) = watch::channel(());
        for start in (range.start..range.end).step_by(part as usize) {
            let range = start..range.end.min(start + part);
            let queue = self.next.fetch_add(1, Ordering::Relaxed) % self.queues.len();
            let (object, parts, reading) = (object.clone(), parts.clone(), reading.clone());
            let request = PartRequest { object, range, parts, reading, span: Span::current() };
            // The thread ends after the last queue is dropped.
            if self.queues[queue].send(request).is_err() {
                break;
            }
        }
        drop(parts);
        let mut missing = bytes;
        for result in received {
            let ReceivedPart { offset, bytes } = result?;
            let at = (offset - range.start) as usize;
            into[at..at + bytes.len()].copy_from_slice(&bytes);
            missing -= bytes.len() as u64;
        }
        match missing {
            0 => Ok(()),
            missing => {
                let why = format!("the thread of the client has ended, and {missing} bytes are missing");
                Err(RemoteError::before(&object.shown, RemoteProblem::Connect { why }))
            }
        }
    }
}

/// Makes requests until the queue is closed.
fn serve(connections: &ConnectionRuntime, mut queued: UnboundedReceiver<PartRequest>, requests: usize) {
    connections.runtime.block_on(async {
        let limit = Arc::new(Semaphore::new(requests));
        loop {
            let request = match timeout(LONGEST_IDLE, queued.recv()).await {
                Ok(Some(request)) => request,
                Ok(None) => return,
                Err(_) => {
                    connections.client.own.pool().close_expired(LONGEST_IDLE);
                    continue;
                }
            };
            // The semaphore is never closed.
            let Ok(permit) = limit.clone().acquire_owned().await else { return };
            let client = connections.client.clone();
            let span = request.span.clone();
            tokio::spawn(receive(request, client, permit).instrument(span));
        }
    });
}

/// Makes one request, until the read has ended.
async fn receive(request: PartRequest, client: RangeClient, _permit: OwnedSemaphorePermit) {
    let PartRequest { object, range, parts, mut reading, span: _ } = request;
    let (mut offset, mut buffer) = (range.start, BytesMut::new());
    let mut stream = RangeStream::new(object, client, range);
    loop {
        if buffer.capacity() < SHORTEST_BUFFER {
            buffer = BytesMut::with_capacity(BUFFER);
        }
        let next = tokio::select! {
            biased;
            _ = reading.changed() => return,
            next = stream.read(&mut buffer) => next,
        };
        let part = match next {
            Ok(0) => return,
            Ok(_) => {
                let part = ReceivedPart { offset, bytes: buffer.split().freeze() };
                offset += part.bytes.len() as u64;
                Ok(part)
            }
            Err(error) => Err(error),
        };
        let is_last = part.is_err();
        if parts.send(part).is_err() || is_last {
            return;
        }
    }
}

impl Drop for Reactors {
    fn drop(&mut self) {
        let (queues, threads) = (take(&mut self.queues), take(&mut self.threads));
        if !self.fork_guard.is_current() {
            // The threads are those of the parent.
            forget((queues, threads));
            return;
        }
        drop(queues);
        threads.into_iter().for_each(Thread::join);
    }
}
