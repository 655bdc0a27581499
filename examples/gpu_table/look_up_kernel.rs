//! The kernel that looks keys up, and its calls.

#![allow(unsafe_code, reason = "a kernel is launched by the driver with addresses")]

use std::ffi::{CString, c_void};
use std::time::{Duration, Instant};

use cudarc::driver::{DriverError, result, sys};

/// The kernel for all GPUs since Maxwell; the driver compiles it.
const PTX: &str = include_str!("look_up.ptx");
/// The threads of a block.
const THREADS: u32 = 256;

/// The kernel in the context of this process's first GPU.
pub struct LookUpKernel {
    function: sys::CUfunction,
    stream: sys::CUstream,
}

/// The place of a table that a kernel walks.
#[derive(Clone, Copy)]
pub struct TablePlace {
    /// The address of the first bucket.
    pub buckets: u64,
    /// The number of buckets, a power of two.
    pub count: usize,
}

impl LookUpKernel {
    /// Loads the kernel.
    ///
    /// # Errors
    /// The driver's.
    pub fn new() -> Result<LookUpKernel, DriverError> {
        result::init()?;
        let text = CString::new(PTX).expect("PTX has no NUL");
        let name = CString::new("look_up").expect("a name has no NUL");
        let device = result::device::get(0)?;
        // SAFETY: the context, the module and the stream live until the process ends.
        unsafe {
            result::ctx::set_current(result::primary_ctx::retain(device)?)?;
            let module = result::module::load_data(text.as_ptr().cast())?;
            let function = result::module::get_function(module, name)?;
            Ok(LookUpKernel {
                function,
                stream: result::stream::create(result::stream::StreamKind::NonBlocking)?,
            })
        }
    }

    /// Writes words to memory of the GPU.
    ///
    /// # Errors
    /// The driver's, for example if the memory is too small.
    pub fn write(&self, at: u64, words: &[u64]) -> Result<(), DriverError> {
        // SAFETY: the words live until the copy has ended.
        unsafe {
            result::memcpy_htod_async(at, words, self.stream)?;
            result::stream::synchronize(self.stream)
        }
    }

    /// Looks keys up in a table. Returns their values, and the time that the kernel took.
    ///
    /// # Errors
    /// The driver's.
    pub fn look_up(&self, table: TablePlace, keys: &[u64]) -> Result<(Vec<u64>, Duration), DriverError> {
        let bytes = size_of_val(keys);
        let mut values = vec![0; keys.len()];
        // SAFETY: the operands are those of the kernel, whose memory exists until it has ended.
        unsafe {
            let (on_gpu, found) = (result::malloc_sync(bytes)?, result::malloc_sync(bytes)?);
            result::memcpy_htod_async(on_gpu, keys, self.stream)?;
            result::stream::synchronize(self.stream)?;
            let begun = Instant::now();
            self.launch([table.buckets, table.count as u64 - 1, on_gpu, found, keys.len() as u64])?;
            let took = begun.elapsed();
            result::memcpy_dtoh_async(&mut values, found, self.stream)?;
            result::stream::synchronize(self.stream)?;
            result::free_sync(on_gpu)?;
            result::free_sync(found)?;
            Ok((values, took))
        }
    }

    /// Runs the kernel with its operands, and waits for its end.
    ///
    /// # Safety
    /// All addresses must be valid on the GPU, with the number of keys in the last operand.
    unsafe fn launch(&self, mut operands: [u64; 5]) -> Result<(), DriverError> {
        let blocks = (operands[4] as u32).div_ceil(THREADS);
        let mut list = operands.each_mut().map(|operand| std::ptr::from_mut(operand).cast::<c_void>());
        // SAFETY: by the contract of this function; the driver reads the list before it returns.
        unsafe {
            result::launch_kernel(self.function, (blocks, 1, 1), (THREADS, 1, 1), 0, self.stream, &mut list)?;
            result::stream::synchronize(self.stream)
        }
    }
}
