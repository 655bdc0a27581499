//! Many copies by one call of the driver.

#![allow(unsafe_code, reason = "the driver is called by foreign functions")]

use std::fmt;

use cudarc::driver::sys;
use hostbuf_os::Bytes;

use crate::cuda_error::CudaError;
use crate::cuda_stream::BorrowedStream;
use crate::driver::Driver;
use crate::functions::{BatchFunctions, BatchIndexFunctions};

/// The number of copies for each call of the driver. On an H100 with driver 580, batches of copies
/// of 64 KiB, without the search for tensors, reached 0.98 of the rate of one large copy with 256
/// for each call, 0.96 with 64 and with 1024, and 0.75 with 10 000: the GPU waits for the first
/// batch to be prepared.
const COPIES_A_CALL: usize = 256;

/// A copy between memory of the GPU and host memory, or within one of them, by addresses that the
/// GPU and the host share (unified addressing).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
// Exhaustive: the three operands of a copy.
pub struct BatchedCopy {
    /// The address to which the bytes are copied.
    pub to: u64,
    /// The address from which the bytes are copied.
    pub from: u64,
    /// The number of bytes.
    pub bytes: usize,
}

/// The driver's function that starts many copies by one call, which newer drivers have.
///
/// A call for each copy costs a few microseconds, which bounds copies of less than about 150 KiB.
#[derive(Clone, Copy)]
pub struct CopyBatch {
    function: BatchFunction,
}

/// The function of CUDA 13, or that of CUDA 12.8, which also returns the index of a wrong copy.
#[derive(Clone, Copy)]
enum BatchFunction {
    Plain(&'static BatchFunctions),
    WithIndex(&'static BatchIndexFunctions),
}

impl CopyBatch {
    /// Finds the function. Returns `None` for a driver before CUDA 12.8, which does not have it.
    #[must_use]
    #[doc(alias = "cuMemcpyBatchAsync")]
    pub fn find(driver: Driver) -> Option<CopyBatch> {
        let functions = driver.functions();
        let plain = functions.batches().map(BatchFunction::Plain);
        let function = plain.or_else(|_| functions.index_batches().map(BatchFunction::WithIndex)).ok()?;
        Some(CopyBatch { function })
    }

    /// Starts copies on a stream that is not a default stream of its context. They may take place
    /// in any order, after the earlier work on the stream and before the later work. Copies of 0
    /// bytes do nothing.
    ///
    /// # Errors
    /// The driver's. It may be the error of earlier work on the stream. Some of the copies may have
    /// started.
    ///
    /// # Safety
    /// Until the copies have ended (see [`synchronize`](BorrowedStream::synchronize), or an event
    /// that is recorded after them), the sources are readable memory that nothing writes to, the
    /// targets are writable memory that nothing else uses, and both stay allocated. Host memory is
    /// registered or page-locked, at the same address for the GPU. No target overlaps another range
    /// of the call.
    pub unsafe fn start(
        &self,
        stream: &BorrowedStream,
        copies: impl IntoIterator<Item = BatchedCopy>,
    ) -> Result<(), CudaError> {
        let mut operands = CopyOperands::new();
        for copy in copies.into_iter().filter(|copy| copy.bytes > 0) {
            operands.push(copy);
            if operands.count == COPIES_A_CALL {
                // SAFETY: the caller guarantees the ranges.
                unsafe { self.call(stream, &mut operands) }?;
            }
        }
        if operands.count > 0 {
            // SAFETY: the caller guarantees the ranges.
            unsafe { self.call(stream, &mut operands) }?;
        }
        Ok(())
    }

    /// Starts the copies of `operands`, and empties them.
    ///
    /// # Safety
    /// As for [`start`](CopyBatch::start).
    unsafe fn call(&self, stream: &BorrowedStream, operands: &mut CopyOperands) -> Result<(), CudaError> {
        let location =
            sys::CUmemLocation { type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_INVALID, id: 0 };
        let count = std::mem::take(&mut operands.count);
        let doing = BatchCall { copies: count, bytes: operands.bytes[..count].iter().sum() };
        stream.context().call(doing, || {
            // One set of attributes for all copies, from the first one on. The locations are hints
            // for managed memory only.
            let mut attributes = sys::CUmemcpyAttributes {
                srcAccessOrder: sys::CUmemcpySrcAccessOrder::CU_MEMCPY_SRC_ACCESS_ORDER_STREAM,
                srcLocHint: location,
                dstLocHint: location,
                flags: 0,
            };
            let (mut first, mut wrong) = (0, 0);
            let (to, from, bytes) = (operands.to.as_ptr(), operands.from.as_ptr(), operands.bytes.as_ptr());
            let (attributes, first) = (&raw mut attributes, &raw mut first);
            match self.function {
                // SAFETY: the arrays have at least `count` elements, and the driver reads them
                // during the call only. The caller guarantees the ranges.
                BatchFunction::Plain(functions) => unsafe {
                    (functions.copy)(to, from, bytes, count, attributes, first, 1, stream.raw())
                },
                // SAFETY: as above. The index is a local variable.
                BatchFunction::WithIndex(functions) => unsafe {
                    let wrong = &raw mut wrong;
                    (functions.copy)(to, from, bytes, count, attributes, first, 1, wrong, stream.raw())
                },
            }
        })
    }
}

/// The operands of the next call, in the arrays that the driver takes.
struct CopyOperands {
    to: [u64; COPIES_A_CALL],
    from: [u64; COPIES_A_CALL],
    bytes: [usize; COPIES_A_CALL],
    count: usize,
}

impl CopyOperands {
    fn new() -> CopyOperands {
        CopyOperands { to: [0; COPIES_A_CALL], from: [0; COPIES_A_CALL], bytes: [0; COPIES_A_CALL], count: 0 }
    }

    fn push(&mut self, copy: BatchedCopy) {
        (self.to[self.count], self.from[self.count]) = (copy.to, copy.from);
        self.bytes[self.count] = copy.bytes;
        self.count += 1;
    }
}

/// The copies of one call in an error message.
struct BatchCall {
    copies: usize,
    bytes: usize,
}

impl fmt::Display for BatchCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cuMemcpyBatchAsync of {} copies, {}", self.copies, Bytes(self.bytes as u64))
    }
}

impl fmt::Debug for CopyBatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CopyBatch").finish_non_exhaustive()
    }
}
