//! An io_uring that one thread uses.

#![allow(unsafe_code, reason = "submits operations on memory of the caller, and waits for all of them")]

use std::io;
use std::os::fd::RawFd;
use std::ptr::NonNull;

use hostbuf_os::fork_guard::ForkGuard;
use io_uring::{IoUring, Probe, opcode, squeue, types};

use super::fixed_buffers::FixedBuffers;
use super::piece_parts::{MAX_PARTS, PieceParts};
use super::setup_refusal::setup_refusal;

/// The direction of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    Read,
    Write,
}

/// A piece of a file, and memory for it.
pub(super) struct Piece {
    pub(super) descriptor: RawFd,
    pub(super) direction: Direction,
    pub(super) memory: *mut u8,
    pub(super) bytes: usize,
    /// The offset in the file.
    pub(super) offset: u64,
    /// The alignment of operations in bytes, 1 for any.
    pub(super) alignment: usize,
}

/// An io_uring that one thread uses. No operation is in flight between two calls.
pub(super) struct IoQueue {
    ring: IoUring,
    buffers: Option<FixedBuffers>,
    /// The reason why the memory of the slots is not registered.
    refusal: Option<String>,
    /// True if the kernel has refused to take operations.
    is_broken: bool,
    fork_guard: ForkGuard,
}

impl IoQueue {
    /// Makes an io_uring for the calling thread.
    ///
    /// # Errors
    /// The reason why there is none.
    #[doc(alias = "io_uring_setup")]
    pub(super) fn new() -> Result<IoQueue, String> {
        // Completions are delivered when the thread waits for them, from Linux 6.1 on.
        let deferred =
            IoUring::builder().setup_single_issuer().setup_defer_taskrun().build(2 * MAX_PARTS as u32);
        let built = deferred.or_else(|error| match error.raw_os_error() {
            Some(libc::EINVAL) => IoUring::new(2 * MAX_PARTS as u32),
            _ => Err(error),
        });
        let ring = built.map_err(|error| setup_refusal(&error))?;
        let mut probe = Probe::new();
        let probed = ring.submitter().register_probe(&mut probe);
        if probed.is_err() || !probe.is_supported(opcode::Read::CODE) {
            return Err("the kernel's io_uring is too old: Linux 5.6 is needed".to_owned());
        }
        let fork_guard = ForkGuard::current();
        Ok(IoQueue { ring, buffers: None, refusal: None, is_broken: false, fork_guard })
    }

    /// Registers the memory of slots, if that is possible.
    ///
    /// # Safety
    /// The memory stays mapped until the queue is dropped.
    pub(super) unsafe fn register(&mut self, slots: NonNull<[u8]>) {
        // SAFETY: the caller keeps the memory.
        match unsafe { FixedBuffers::register(&self.ring, slots) } {
            Ok(buffers) => self.buffers = Some(buffers),
            Err(why) => self.refusal = Some(why),
        }
    }

    /// Returns the reason why the memory of the slots is not registered, if there are slots.
    pub(super) fn refusal(&self) -> Option<&str> {
        self.refusal.as_deref()
    }

    /// Returns whether the queue takes operations: it was not inherited by a forked child, and the
    /// kernel has not refused it.
    pub(super) fn is_usable(&self) -> bool {
        !self.is_broken && self.fork_guard.is_current()
    }

    /// Reads or writes a piece, in parts that are in flight at the same time. Returns the number of
    /// bytes before the first one that is not read or written.
    ///
    /// # Errors
    /// The kernel's.
    ///
    /// # Safety
    /// The memory is valid for the direction, and nothing else accesses it meanwhile.
    pub(super) unsafe fn run(&mut self, piece: &Piece) -> io::Result<usize> {
        let mut parts = PieceParts::new(piece.bytes, piece.alignment);
        let mut batch = PieceBatch { queue: self, in_flight: 0 };
        for number in 0..parts.count() {
            // SAFETY: the batch waits for all operations before it returns.
            unsafe { batch.push(piece, &parts, number) };
        }
        while batch.in_flight > 0 {
            batch.wait()?;
            while let Some((number, result)) = batch.next_result() {
                if parts.complete(number, result) {
                    // SAFETY: as above.
                    unsafe { batch.push(piece, &parts, number) };
                }
            }
        }
        parts.result()
    }

    /// Makes the operation for the rest of a part.
    fn operation(&self, piece: &Piece, parts: &PieceParts, number: usize) -> squeue::Entry {
        let rest = parts.rest(number);
        let (memory, offset) = (piece.memory.wrapping_add(rest.start), piece.offset + rest.start as u64);
        let (descriptor, bytes) = (types::Fd(piece.descriptor), rest.len() as u32);
        let address = memory as usize;
        let fixed = self.buffers.as_ref().and_then(|buffers| buffers.index(address..address + rest.len()));
        let entry = match (piece.direction, fixed) {
            (Direction::Read, None) => opcode::Read::new(descriptor, memory, bytes).offset(offset).build(),
            (Direction::Read, Some(buffer)) => {
                opcode::ReadFixed::new(descriptor, memory, bytes, buffer).offset(offset).build()
            }
            (Direction::Write, None) => opcode::Write::new(descriptor, memory, bytes).offset(offset).build(),
            (Direction::Write, Some(buffer)) => {
                opcode::WriteFixed::new(descriptor, memory, bytes, buffer).offset(offset).build()
            }
        };
        entry.user_data(number as u64)
    }
}

impl Drop for IoQueue {
    fn drop(&mut self) {
        if !self.fork_guard.is_current() {
            // The registration is that of the parent.
            return;
        }
        if let Some(Err(error)) = self.buffers.take().map(|buffers| buffers.end(&self.ring)) {
            tracing::error!("the fixed buffers of an io_uring stay until the kernel has closed it: {error}");
        }
    }
}

/// The operations of a piece that are queued or in flight. Dropping it waits for them, so that the
/// kernel never writes to memory that the caller has given back.
struct PieceBatch<'q> {
    queue: &'q mut IoQueue,
    in_flight: usize,
}

impl PieceBatch<'_> {
    /// Queues the operation for the rest of a part.
    ///
    /// # Safety
    /// The memory of the part is valid until the operation has ended.
    unsafe fn push(&mut self, piece: &Piece, parts: &PieceParts, number: usize) {
        let entry = self.queue.operation(piece, parts, number);
        // SAFETY: the caller guarantees the memory.
        let pushed = unsafe { self.queue.ring.submission().push(&entry) };
        pushed.expect("the queue has more entries than a piece has parts");
        self.in_flight += 1;
    }

    /// Submits what is queued, and waits until all operations have ended, or for a part of them.
    ///
    /// # Errors
    /// The kernel's, if it has taken none of the operations.
    fn wait(&mut self) -> io::Result<()> {
        let Err(error) = self.queue.ring.submit_and_wait(self.in_flight) else { return Ok(()) };
        match error.raw_os_error() {
            // A signal, a lack of memory that passes, or results that are to be taken first.
            Some(libc::EINTR | libc::EAGAIN | libc::EBUSY) => {
                std::thread::yield_now();
                Ok(())
            }
            _ if self.queue.ring.submission().len() == self.in_flight => {
                self.in_flight = 0;
                self.queue.is_broken = true;
                Err(error)
            }
            _ => {
                // The kernel may write to the memory of the caller for an unknown time.
                tracing::error!("io_uring_enter fails with operations in flight: {error}");
                std::process::abort();
            }
        }
    }

    /// Takes the result of an operation that has ended: the number of the part, and the result.
    fn next_result(&mut self) -> Option<(usize, i32)> {
        let entry = self.queue.ring.completion().next()?;
        self.in_flight -= 1;
        Some((entry.user_data() as usize, entry.result()))
    }
}

impl Drop for PieceBatch<'_> {
    fn drop(&mut self) {
        while self.in_flight > 0 && self.wait().is_ok() {
            while self.next_result().is_some() {}
        }
    }
}
