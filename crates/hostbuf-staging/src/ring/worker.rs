//! The threads of a ring.

#![allow(unsafe_code, reason = "lets a thread register the memory of a ring")]

use std::io;
use std::sync::Arc;
use std::thread::yield_now;

use hostbuf_os::thread::{self, Thread};
use nix::sys::signal::SigSet;

use super::copy_steps::Waited;
use super::ring_core::RingCore;
use crate::counters::PageWord;
use crate::device::CopyDevice;
use crate::file::with_slot_memory;
use crate::profiler_range::ThreadRange;
use crate::range_name::RangeName;

/// The number of times that a thread looks for work before it sleeps.
const LOOKS: u32 = 16;

/// Does the work of a ring until the ring has stopped.
pub(super) fn work<D: CopyDevice>(core: &RingCore<D>) {
    // The program's handlers run in the program's threads.
    let _ = SigSet::all().thread_block();
    let mut current = None;
    loop {
        let epoch = core.signal.epoch();
        if (0..LOOKS).any(|look| {
            if look > 0 {
                yield_now();
            }
            core.step(&mut current)
        }) {
            continue;
        }
        if core.has_stopped() {
            // A thread may sleep that has looked while this one had a slot.
            core.signal.notify();
            return;
        }
        // A transfer that has ended is not kept by a thread that sleeps.
        current = None;
        let sleep = || core.signal.wait(epoch);
        match core.wait_for_device(epoch) {
            Waited::Again => {}
            Waited::Beside if core.has_chunks() => {
                let _range = ThreadRange::new(RangeName::WaitForDevice);
                core.counters.time(PageWord::WaitingForDevice, sleep);
            }
            Waited::NoCopy if core.has_chunks() => {
                let _range = ThreadRange::new(RangeName::WaitForSlot);
                core.counters.time(PageWord::WaitingForSlot, sleep);
            }
            Waited::Beside | Waited::NoCopy => sleep(),
        }
    }
}

/// A thread of a ring, from before it begins until it accesses the ring no more.
struct RunningThread<D: CopyDevice>(Arc<RingCore<D>>);

impl<D: CopyDevice> RunningThread<D> {
    fn new(core: &Arc<RingCore<D>>) -> RunningThread<D> {
        core.life.begin_thread();
        RunningThread(core.clone())
    }

    /// Does the work of the ring in the calling thread.
    fn work(&self) {
        // SAFETY: the memory stays as long as this thread is counted.
        unsafe { with_slot_memory(self.0.life.memory(), || work(&self.0)) };
    }
}

impl<D: CopyDevice> Drop for RunningThread<D> {
    fn drop(&mut self) {
        self.0.life.end_thread();
    }
}

/// Starts the threads of a ring.
///
/// # Errors
/// The kernel's. The ring is stopped then, and no thread is left.
pub(super) fn start<D: CopyDevice>(core: &Arc<RingCore<D>>, count: usize) -> io::Result<Vec<Thread>> {
    let mut threads = Vec::with_capacity(count);
    for _ in 0..count {
        let running = RunningThread::new(core);
        match thread::spawn(c"hostbuf-ring", move || running.work()) {
            Ok(thread) => threads.push(thread),
            Err(error) => {
                core.stop();
                join(threads);
                return Err(error);
            }
        }
    }
    Ok(threads)
}

/// Waits for the end of threads.
pub(super) fn join(threads: Vec<Thread>) {
    threads.into_iter().for_each(Thread::join);
}
