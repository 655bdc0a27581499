//! The context, or the GPU without one, for which the driver is called.

use std::ffi::c_uint;
use std::fmt;

use hostbuf_os::Bytes;
use hostbuf_os::fork_guard::ForkGuard;
use hostbuf_os::process;

use crate::cuda_code::CudaCode;
use crate::cuda_context::CudaContext;
use crate::cuda_error::CudaError;
use crate::cuda_gpu::CudaGpu;
use crate::driver::Driver;
use crate::free_memory::free_and_total;

/// The context, or the GPU without one, for which the driver is called.
///
/// Virtual memory management needs no context. Without one, a process uses no GPU memory other
/// than what it maps, and leaves the choice of its GPU to a later call.
#[derive(Clone, Debug)]
pub struct DriverCaller(Caller);

#[derive(Clone, Debug)]
enum Caller {
    Context(CudaContext),
    Gpu(CudaGpu, ForkGuard),
}

impl From<&CudaContext> for DriverCaller {
    fn from(context: &CudaContext) -> DriverCaller {
        DriverCaller(Caller::Context(context.clone()))
    }
}

impl From<&CudaGpu> for DriverCaller {
    fn from(gpu: &CudaGpu) -> DriverCaller {
        DriverCaller(Caller::Gpu(*gpu, ForkGuard::current()))
    }
}

impl DriverCaller {
    /// Returns the GPU.
    pub(crate) fn gpu(&self) -> &CudaGpu {
        match &self.0 {
            Caller::Context(context) => context.gpu(),
            Caller::Gpu(gpu, _) => gpu,
        }
    }

    /// Returns the driver.
    pub(crate) fn driver(&self) -> Driver {
        self.gpu().driver()
    }

    /// Calls a function of the driver; `doing` names it with its operands. If the driver
    /// requires a context, the call is repeated in a temporary one.
    pub(crate) fn call(
        &self,
        doing: impl fmt::Display,
        mut function: impl FnMut() -> c_uint,
    ) -> Result<(), CudaError> {
        match &self.0 {
            Caller::Context(context) => context.call(doing, function),
            Caller::Gpu(_, fork_guard) if !fork_guard.is_current() => {
                Err(CudaError::Forked { host: process::host_name() })
            }
            Caller::Gpu(gpu, _) => match function() {
                answer if CudaCode::of(answer) == Some(CudaCode::INVALID_CONTEXT) => {
                    CudaContext::retain(gpu)?.call(doing, function)
                }
                answer => self.driver().checked(answer, doing),
            },
        }
    }

    /// Calls a function that allocates memory of the GPU. If there is too little, the error states
    /// the free memory.
    pub(crate) fn allocate(&self, request: &str, function: impl FnMut() -> c_uint) -> Result<(), CudaError> {
        self.call(request, function).map_err(|error| match error.code() {
            Some(CudaCode::OUT_OF_MEMORY) => {
                match self.retained_context().and_then(|context| free_and_total(&context)) {
                    Ok((free, total)) => self.driver().error(
                        CudaCode::OUT_OF_MEMORY,
                        format_args!(
                            "{request} ({} of {} are free)",
                            Bytes(free as u64),
                            Bytes(total as u64)
                        ),
                    ),
                    Err(_) => error,
                }
            }
            _ => error,
        })
    }

    /// Returns the context, if there is one.
    pub(crate) fn context(&self) -> Option<&CudaContext> {
        match &self.0 {
            Caller::Context(context) => Some(context),
            Caller::Gpu(..) => None,
        }
    }

    /// Returns the context, or a new one of the GPU.
    fn retained_context(&self) -> Result<CudaContext, CudaError> {
        match &self.0 {
            Caller::Context(context) => Ok(context.clone()),
            Caller::Gpu(gpu, _) => CudaContext::retain(gpu),
        }
    }

    /// Ends `object` for a destructor, by a function of the driver. A failure is logged, unless the
    /// context is gone and the object with it. Does nothing in a forked child.
    pub(crate) fn end(&self, object: impl fmt::Display, doing: &str, function: impl FnMut() -> c_uint) {
        match self.call(doing, function) {
            Ok(()) | Err(CudaError::Forked { .. }) => {}
            Err(error) if error.is_context_gone() => {}
            Err(error) => tracing::error!("{object} is not released: {error}"),
        }
    }
}
