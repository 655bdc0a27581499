//! The streams of threads on a GPU.

use std::process::Command;
use std::thread;
use std::time::Instant;

use hostbuf_cuda::{CudaContext, CudaStream, DeviceMemory, StreamHandle};

use super::MIB;
use super::ring_contract::reset;
use super::streams::{HostCopies, first_gpu};

/// The variable of the process that resets its context.
const PART: &str = "HOSTBUF_TEST_THREAD_STREAMS";
const ROUNDS: u32 = 1000;

fn handle(context: &CudaContext) -> StreamHandle {
    CudaStream::of_thread(context).expect("a stream").handle()
}

/// Copies to the GPU and back on the stream of this thread.
fn copy(context: &CudaContext, seed: u8) {
    let mut copies = HostCopies::new(context, MIB);
    copies.stream = CudaStream::of_thread(context).expect("a stream");
    let memory = DeviceMemory::new(context, MIB).expect("memory of the GPU");
    copies.start_write(memory.address(), seed);
    // Both copies use the same memory of the host.
    copies.stream.synchronize().expect("it ends");
    copies.check(memory.address(), seed);
}

/// Returns the time of one round in nanoseconds.
fn time(round: impl Fn()) -> u128 {
    let begun = Instant::now();
    (0..ROUNDS).for_each(|_| round());
    begun.elapsed().as_nanos() / u128::from(ROUNDS)
}

#[test]
#[ignore = "needs a GPU"]
fn a_thread_has_one_stream_until_its_context_is_reset() {
    // In a process of its own, since nobody else can use a context that is reset.
    if std::env::var_os(PART).is_none() {
        let name = "gpu::thread_streams::a_thread_has_one_stream_until_its_context_is_reset";
        let mut command = Command::new(std::env::current_exe().expect("this test"));
        command.args(["--ignored", "--exact", name, "--nocapture"]).env(PART, "");
        assert!(command.status().expect("it starts").success());
        return;
    }
    let gpu = first_gpu();
    let context = CudaContext::retain(&gpu).expect("a context");
    let first = handle(&context);
    assert!((0..ROUNDS).all(|_| handle(&context) == first));
    let in_thread = || {
        let context = context.clone();
        let run = move || {
            copy(&context, 3);
            handle(&context)
        };
        thread::spawn(run).join().expect("no panic")
    };
    let other = in_thread();
    assert!(other != first && in_thread() == other);
    println!("the stream of a thread takes {} ns", time(|| drop(CudaStream::of_thread(&context))));
    println!("making and destroying a stream takes {} ns", time(|| drop(CudaStream::new(&context))));
    reset(&gpu);
    let again = CudaContext::retain(&gpu).expect("a context");
    copy(&again, 5);
    assert_eq!(handle(&again), handle(&again));
}
