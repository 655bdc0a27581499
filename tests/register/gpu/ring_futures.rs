//! Many pending transfers as futures, on a GPU and on the fake driver.

use std::fs;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

use hostbuf_cuda::CudaContext;
use hostbuf_staging::{ReadAt, Transfer};
use hostbuf_tests::Scratch;
use hostbuf_tests::fake_cuda::{SLOW_COPIES, with_fake_cuda_and};

use super::held_stream::HeldStream;
use super::ring_contract::{SLOT, read_back, ring};
use super::ring_faults::wait_for_copies;
use super::rings::{content, target};
use super::streams::first_gpu;

const COUNT: usize = 1000;
const BYTES: usize = 5000;

/// A source in memory.
struct MemorySource(Vec<u8>);

impl ReadAt for MemorySource {
    fn name(&self) -> String {
        "memory".into()
    }

    fn read_at(&self, into: &mut [u8], offset: u64) -> io::Result<usize> {
        let rest = self.0.get(offset as usize..).unwrap_or_default();
        let bytes = rest.len().min(into.len());
        into[..bytes].copy_from_slice(&rest[..bytes]);
        Ok(bytes)
    }
}

/// A thread that waits for a future.
struct WaitingThread(Thread);

impl Wake for WaitingThread {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn block_on<F: Future>(future: F) -> F::Output {
    let waker = Waker::from(Arc::new(WaitingThread(std::thread::current())));
    let (mut context, mut future) = (Context::from_waker(&waker), pin!(future));
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(output) => return output,
            Poll::Pending => std::thread::park(),
        }
    }
}

/// Returns the number of threads of this process.
fn threads() -> usize {
    fs::read_dir("/proc/self/task").expect("/proc is mounted").count()
}

/// Awaits transfers that were pending at the same time, of which every second one is dropped.
fn await_many() {
    let gpu = first_gpu();
    let context = CudaContext::retain(&gpu).expect("a context");
    let (ring, folder) = (ring(&gpu), Scratch::new("ring-futures"));
    let [first, second] = [1, 2].map(|seed| Arc::new(MemorySource(content(COUNT * BYTES, seed))));
    let to = target(&context, COUNT * BYTES);
    ring.read(first.clone(), 0, to.clone()).wait().expect("it is read");
    let large = target(&context, 10 * SLOT);
    let large_source = Arc::new(MemorySource(content(10 * SLOT, 3)));

    let (copies, held) = (ring.counters().copies, HeldStream::of(&ring));
    let before_all = ring.read(large_source.clone(), 0, large.clone());
    wait_for_copies(&ring, copies);
    let before = threads();
    let read = |number: usize| {
        let range = (number * BYTES) as u64..((number + 1) * BYTES) as u64;
        ring.read(second.clone(), range.start, to.part(range).expect("it is within"))
    };
    let mut transfers: Vec<_> = (0..COUNT).map(|number| Some(read(number))).collect();
    let mut noop = Context::from_waker(Waker::noop());
    let mut is_pending = |transfer: &mut Transfer| Pin::new(transfer).poll(&mut noop).is_pending();
    assert!(transfers.iter_mut().flatten().all(&mut is_pending));
    assert!(threads() < before + 20, "{} threads, and {before} before", threads());
    transfers.iter_mut().skip(1).step_by(2).for_each(|transfer| drop(transfer.take()));
    assert!(transfers.iter_mut().flatten().all(is_pending));
    drop(held);
    for transfer in transfers.into_iter().flatten() {
        assert_eq!(block_on(transfer).expect("it is read"), BYTES as u64);
    }
    assert_eq!(block_on(before_all).expect("it is read"), 10 * SLOT as u64);

    let found = read_back(&ring, &folder, to);
    for number in 0..COUNT {
        let range = number * BYTES..(number + 1) * BYTES;
        let (found, was_dropped) = (&found[range.clone()], number % 2 == 1);
        let is_old = was_dropped && found == &first.0[range.clone()];
        assert!(is_old || found == &second.0[range], "transfer {number}");
    }
    assert!(read_back(&ring, &folder, large) == large_source.0);
}

#[test]
fn many_futures_of_the_fake_driver_are_pending_at_once() {
    let name = "gpu::ring_futures::many_futures_of_the_fake_driver_are_pending_at_once";
    if with_fake_cuda_and(name, &[SLOW_COPIES]) {
        await_many();
    }
}

#[test]
#[ignore = "needs a GPU"]
fn many_futures_of_a_gpu_are_pending_at_once() {
    await_many();
}
