//! Blocks that tasks of an event loop wait for. No thread of hostbuf needs the interpreter, which
//! may be ending: it wakes the loop by a socket.

use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};

use hostbuf_os::poison::IgnorePoison;
use hostbuf_pool::TakeError;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::pool_error::take_raised;

/// A block that was taken, as a function that makes its Python object. The block is free if the
/// function is dropped.
pub type BlockMaker = Box<dyn FnOnce(Python<'_>) -> PyResult<Py<PyAny>> + Send>;

type TakeFuture = Pin<Box<dyn Future<Output = Result<BlockMaker, TakeError>> + Send>>;

/// The numbers of the requests that have a result, and the socket that wakes their loop.
struct ReadyNumbers {
    numbers: Mutex<Vec<u64>>,
    waking: UnixStream,
}

/// The requests of a loop's tasks that have a result.
#[pyclass(frozen, module = "hostbuf._hostbuf")]
pub struct ReadyQueue {
    ready: Arc<ReadyNumbers>,
    woken: UnixStream,
}

/// A request that wakes its loop.
struct RequestWaker {
    number: u64,
    ready: Arc<ReadyNumbers>,
}

impl Wake for RequestWaker {
    fn wake(self: Arc<Self>) {
        let mut numbers = self.ready.numbers.lock().ignore_poison();
        let is_first = numbers.is_empty();
        numbers.push(self.number);
        drop(numbers);
        if is_first {
            // A socket that is full wakes the loop already.
            let _ = (&self.ready.waking).write(&[1]);
        }
    }
}

impl ReadyQueue {
    /// Returns the waker of the request with a number.
    pub fn waker(&self, number: u64) -> Waker {
        Waker::from(Arc::new(RequestWaker { number, ready: self.ready.clone() }))
    }
}

#[pymethods]
impl ReadyQueue {
    #[new]
    fn new() -> PyResult<ReadyQueue> {
        let (woken, waking) = UnixStream::pair()?;
        woken.set_nonblocking(true)?;
        waking.set_nonblocking(true)?;
        let ready = Arc::new(ReadyNumbers { numbers: Mutex::default(), waking });
        Ok(ReadyQueue { ready, woken })
    }

    /// Returns the descriptor that is readable once a request has a result.
    fn fileno(&self) -> i32 {
        self.woken.as_raw_fd()
    }

    /// Returns the numbers of the requests that have a result since the last call.
    fn take(&self) -> PyResult<Vec<u64>> {
        match (&self.woken).read(&mut [0; 64]) {
            Err(error) if error.kind() != ErrorKind::WouldBlock => return Err(error.into()),
            _ => {}
        }
        Ok(std::mem::take(&mut *self.ready.numbers.lock().ignore_poison()))
    }
}

/// A block that a task waits for, until it is taken or cancelled.
#[pyclass(frozen, module = "hostbuf._hostbuf")]
pub struct PendingBlock {
    future: Mutex<Option<TakeFuture>>,
    waker: Waker,
}

impl PendingBlock {
    pub fn new(
        waker: Waker,
        future: impl Future<Output = Result<BlockMaker, TakeError>> + Send + 'static,
    ) -> PendingBlock {
        PendingBlock { future: Mutex::new(Some(Box::pin(future))), waker }
    }
}

#[pymethods]
impl PendingBlock {
    /// Returns the block, or `None` if it is not there yet.
    fn get(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        let mut place = self.future.lock().ignore_poison();
        let Some(future) = place.as_mut() else {
            return Err(PyValueError::new_err("the request has ended"));
        };
        let Poll::Ready(result) = future.as_mut().poll(&mut Context::from_waker(&self.waker)) else {
            return Ok(None);
        };
        let ended = place.take();
        drop(place);
        // It may have been the last use of a producer that is closed.
        py.detach(|| drop(ended));
        let taken = result.map_err(|error| take_raised(py, error))?;
        taken(py).map(Some)
    }

    /// Gives up the place of the request. A block that it has got is free.
    fn cancel(&self, py: Python<'_>) {
        let ended = self.future.lock().ignore_poison().take();
        py.detach(|| drop(ended));
    }
}
