//! Copies of rows at equal distances by one call of the driver.

#![allow(unsafe_code, reason = "the driver is called by foreign functions")]

use std::ffi::c_void;
use std::fmt;
use std::ptr::null_mut;

use cudarc::driver::sys;
use hostbuf_os::Bytes;

use crate::cuda_error::CudaError;
use crate::cuda_stream::BorrowedStream;
use crate::device_span::DeviceSpan;

/// A copy of rows at equal distances (a 2-D copy) from host memory to memory of a GPU. All numbers
/// are bytes, except the height.
#[derive(Clone, Copy, Debug)]
#[doc(alias = "CUDA_MEMCPY2D")]
// Exhaustive: the operands of a copy.
pub struct PitchedCopy {
    /// The host memory, with the first row at its beginning.
    pub from: *const [u8],
    /// The distance from a row to the next in the host memory.
    pub from_pitch: usize,
    /// The memory of the GPU, with the first row at its beginning.
    pub to: DeviceSpan,
    /// The distance from a row to the next in the memory of the GPU. It is the width if the rows
    /// lie there without gaps.
    pub to_pitch: usize,
    /// The length of a row.
    pub width: usize,
    /// The number of rows.
    pub height: usize,
}

impl PitchedCopy {
    /// The largest distance between rows that GPUs support.
    #[doc(alias = "CU_DEVICE_ATTRIBUTE_MAX_PITCH")]
    pub const LARGEST_PITCH: usize = (1 << 31) - 1;

    /// Checks that the rows do not overlap and that they lie within both ranges.
    ///
    /// # Errors
    /// [`CudaError::Invalid`].
    fn check(&self) -> Result<(), CudaError> {
        let &PitchedCopy { from, from_pitch, to, to_pitch, width, height } = self;
        let invalid = |what: String| Err(CudaError::invalid(what));
        for (side, bytes, pitch) in
            [("host memory", from.len(), from_pitch), ("memory of the GPU", to.bytes(), to_pitch)]
        {
            if pitch < width {
                return invalid(format!(
                    "invalid pitch {pitch} of rows in {side}: expected at least their width, {width} bytes"
                ));
            }
            if pitch > PitchedCopy::LARGEST_PITCH {
                return invalid(format!(
                    "invalid pitch {pitch} of rows in {side}: the largest is {} bytes; copy the rows one by one",
                    PitchedCopy::LARGEST_PITCH
                ));
            }
            let before = (height - 1).checked_mul(pitch);
            if before.and_then(|before| before.checked_add(width)).is_none_or(|end| end > bytes) {
                return invalid(format!(
                    "{height} rows of {width} bytes with pitch {pitch} do not fit into {bytes} bytes of {side}: state \
                     fewer rows, or a larger range"
                ));
            }
        }
        if to.address().checked_add(to.bytes() as u64).is_none() {
            let (address, bytes) = (to.address(), to.bytes());
            return invalid(format!(
                "{bytes} bytes of memory of the GPU at {address:#x} end beyond the last address: state a range of an \
                 allocation"
            ));
        }
        Ok(())
    }
}

impl BorrowedStream {
    /// Starts a copy of rows at equal distances from host memory to memory of the GPU. From memory
    /// that is neither registered nor page-locked, the driver may first copy in this thread. A copy
    /// of 0 rows, or of rows of 0 bytes, does nothing.
    ///
    /// # Errors
    /// [`CudaError::Invalid`] if a distance is less than the width or more than
    /// [`LARGEST_PITCH`](PitchedCopy::LARGEST_PITCH), or if the rows do not lie within a range.
    /// Otherwise the driver's, which may be the error of earlier work on the stream.
    ///
    /// # Safety
    /// Until the copy has ended (see [`synchronize`](BorrowedStream::synchronize), or an event that
    /// is recorded after it), `from` is readable memory that nothing writes to and that stays
    /// mapped, and `to` is memory of the GPU whose rows nothing else uses.
    #[doc(alias = "cuMemcpy2DAsync")]
    pub unsafe fn copy_rows_to_device(&self, copy: &PitchedCopy) -> Result<(), CudaError> {
        if copy.width == 0 || copy.height == 0 {
            return Ok(());
        }
        copy.check()?;
        let operands = sys::CUDA_MEMCPY2D {
            srcXInBytes: 0,
            srcY: 0,
            srcMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_HOST,
            srcHost: copy.from.cast::<c_void>(),
            srcDevice: 0,
            srcArray: null_mut(),
            srcPitch: copy.from_pitch,
            dstXInBytes: 0,
            dstY: 0,
            dstMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_DEVICE,
            dstHost: null_mut(),
            dstDevice: copy.to.address(),
            dstArray: null_mut(),
            dstPitch: copy.to_pitch,
            WidthInBytes: copy.width,
            Height: copy.height,
        };
        let doing = RowsCall { width: copy.width, height: copy.height };
        // SAFETY: the driver reads the operands during the call only. The caller guarantees both
        // ranges, and the rows lie within them.
        self.context()
            .call(doing, || unsafe { (self.functions().copy_rows)(&raw const operands, self.raw()) })
    }
}

/// The rows of one call in an error message.
struct RowsCall {
    width: usize,
    height: usize,
}

impl fmt::Display for RowsCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cuMemcpy2DAsync of {} rows of {}", self.height, Bytes(self.width as u64))
    }
}
