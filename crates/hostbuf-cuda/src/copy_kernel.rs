//! The kernel that does a deferred copy.

#![allow(unsafe_code, reason = "the driver is called by foreign functions")]

use std::ffi::{CString, c_uint, c_void};
use std::ptr::null_mut;
use std::sync::Mutex;

use cudarc::driver::sys;
use hostbuf_os::forking::hold_around_fork;
use hostbuf_os::poison::IgnorePoison;

use crate::cuda_context::CudaContext;
use crate::cuda_error::CudaError;
use crate::cuda_gpu::GpuFeature;
use crate::cuda_stream::BorrowedStream;

/// The kernel for all GPUs since Maxwell. The driver compiles it, in a few milliseconds.
const PTX: &str = include_str!("copy_kernel.ptx");
/// The name of the function in it.
const NAME: &str = "hostbuf_copy";
/// The blocks of a copy, and the threads of a block. Each thread has four loads of 16 bytes in
/// flight, together 256 KiB. On an H100 that is 49 GB/s, and so are more blocks; each one adds a
/// load of the request, which takes about 1 µs.
const BLOCKS: c_uint = 8;
const THREADS: c_uint = 512;

/// The kernels of all contexts, by their handles. They keep their contexts.
static KERNELS: Mutex<Vec<(CudaContext, usize)>> = Mutex::new(Vec::new());

/// The kernel that does a deferred copy, loaded into a context.
#[derive(Clone, Copy)]
pub(crate) struct CopyKernel {
    handle: usize,
}

impl CopyKernel {
    /// Returns the kernel of a context. The first call for a context loads it.
    ///
    /// # Errors
    /// The driver's, and [`CudaError::Invalid`] for a GPU to which registered memory of the host
    /// has other addresses than to the host.
    pub(crate) fn of(context: &CudaContext) -> Result<CopyKernel, CudaError> {
        // No lock of a parent is taken.
        drop(context.make_current()?);
        hold_around_fork!(KERNELS: Vec<(CudaContext, usize)>);
        let mut kernels = KERNELS.lock().ignore_poison();
        if let Some(&(_, handle)) = kernels.iter().find(|(known, _)| known == context) {
            return Ok(CopyKernel { handle });
        }
        let kernel = CopyKernel::load(context)?;
        kernels.push((context.clone(), kernel.handle));
        Ok(kernel)
    }

    fn load(context: &CudaContext) -> Result<CopyKernel, CudaError> {
        let gpu = context.gpu();
        if !gpu.supports(GpuFeature::HostAddresses) {
            return Err(CudaError::invalid(format!(
                "a kernel on {gpu} cannot use addresses of host memory, so it cannot copy in the order of a stream: \
                 use the transfers that begin after a stream (pread_after, pwrite_after)"
            )));
        }
        let functions = context.driver().functions().kernels()?;
        let (text, name) = (CString::new(PTX), CString::new(NAME));
        let (text, name) = (text.expect("PTX has no NUL"), name.expect("a name has no NUL"));
        let (mut module, mut handle) = (null_mut(), null_mut());
        // SAFETY: `module` is a local variable, and the text ends with NUL.
        context.call("cuModuleLoadData", || unsafe {
            (functions.load)(&raw mut module, text.as_ptr().cast())
        })?;
        // The module ends with the context.
        // SAFETY: `handle` is a local variable, and the name ends with NUL.
        context.call("cuModuleGetFunction", || unsafe {
            (functions.find)(&raw mut handle, module, name.as_ptr())
        })?;
        Ok(CopyKernel { handle: handle as usize })
    }

    /// Forgets the kernel of a context, in which it may not exist any more.
    pub(crate) fn discard(context: &CudaContext) {
        KERNELS.lock().ignore_poison().retain(|(known, _)| known != context);
    }

    /// Enqueues the copy that the request at an address of the GPU states when the stream executes
    /// this.
    ///
    /// # Errors
    /// The driver's.
    ///
    /// # Safety
    /// The request exists until the stream has executed this, and is valid when the stream begins
    /// to: the ranges exist, and nothing else accesses them.
    pub(crate) unsafe fn launch(self, stream: &BorrowedStream, request: u64) -> Result<(), CudaError> {
        let functions = stream.context().driver().functions().kernels()?;
        let mut request = request;
        let mut parameters = [(&raw mut request).cast::<c_void>()];
        let function = self.handle as sys::CUfunction;
        stream.context().call("cuLaunchKernel", || {
            // SAFETY: the driver reads the parameter before it returns; the caller guarantees the
            // request.
            unsafe {
                (functions.launch)(
                    function,
                    BLOCKS,
                    1,
                    1,
                    THREADS,
                    1,
                    1,
                    0,
                    stream.raw(),
                    parameters.as_mut_ptr(),
                    null_mut(),
                )
            }
        })
    }
}
