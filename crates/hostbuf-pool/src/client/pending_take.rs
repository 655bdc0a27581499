//! A block that a task waits for.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use hostbuf_os::thread;
use nix::sys::signal::SigSet;

use super::producer_segment::ProducerSegment;
use super::take_error::TakeError;
use super::taker_queue::Taker;
use crate::error::PoolError;

/// The number of a block that a task waits for. When it is dropped, the task gives up its place,
/// and the block that it has got meanwhile is free.
#[derive(Debug)]
pub(super) struct PendingTake<'a> {
    segment: &'a Arc<ProducerSegment>,
    /// `None` before the first poll, and after the last one.
    taker: Option<Arc<Taker>>,
}

impl PendingTake<'_> {
    pub(super) fn new(segment: &Arc<ProducerSegment>) -> PendingTake<'_> {
        PendingTake { segment, taker: None }
    }
}

impl Future for PendingTake<'_> {
    type Output = Result<u32, TakeError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if !self.segment.is_mapped() {
            return Poll::Ready(Err(PoolError::Forked.into()));
        }
        if let Some(taker) = &self.taker {
            let result = std::task::ready!(taker.poll(context));
            self.taker = None;
            return Poll::Ready(result);
        }
        if self.segment.is_closed() {
            return Poll::Ready(Err(TakeError::Closed));
        }
        // A task that came later does not get the block for which another one waits.
        if !self.segment.takers().has_waiting()
            && let Some((number, _)) = self.segment.try_take()
        {
            return Poll::Ready(Ok(number));
        }
        self.segment.count_exhausted();
        match self.segment.takers().add(context.waker(), || start_thread(self.segment)) {
            Ok(taker) => {
                self.taker = Some(taker);
                Poll::Pending
            }
            Err(error) => Poll::Ready(Err(error)),
        }
    }
}

impl Drop for PendingTake<'_> {
    fn drop(&mut self) {
        // In a forked child, another thread of its parent may have the lock for ever.
        let Some(taker) = self.taker.take().filter(|_| self.segment.is_mapped()) else { return };
        match taker.cancel() {
            Some(number) => self.segment.free(number),
            // The thread looks whether it is still needed.
            None => self.segment.wake_takers(),
        }
    }
}

fn failed(error: io::Error) -> TakeError {
    PoolError::os("waiting for a free block")(error).into()
}

fn start_thread(segment: &Arc<ProducerSegment>) -> Result<(), TakeError> {
    let segment = segment.clone();
    thread::spawn(c"hostbuf-take", move || serve(&segment)).map(drop).map_err(failed)
}

/// Takes blocks for the tasks of a segment until none waits.
fn serve(segment: &ProducerSegment) {
    // The program's handlers run in the program's threads.
    let _ = SigSet::all().thread_block();
    segment.count_waiting(1);
    while let Some(taker) = segment.takers().next() {
        if let Some((number, _)) = segment.try_take() {
            if !taker.finish(Ok(number)) {
                segment.free(number);
            }
        } else if let Err(error) = segment.wait_for_space(None) {
            taker.finish(Err(failed(error)));
        }
    }
    segment.count_waiting(-1);
}
