//! Contexts, and the one that is current in a thread.

#![allow(unsafe_code, reason = "the driver is called by foreign functions")]

use std::ffi::c_uint;
use std::fmt;
use std::marker::PhantomData;
use std::ptr::null_mut;
use std::sync::Arc;

use cudarc::driver::sys;
use hostbuf_os::fork_guard::ForkGuard;
use hostbuf_os::process;

use crate::cuda_error::CudaError;
use crate::cuda_gpu::CudaGpu;
use crate::driver::Driver;
use crate::event_pool::EventPool;

/// The primary context of a GPU, which CUDA's runtime and other libraries of the process use too.
///
/// Every clone and everything that is made in the context keeps it; the last one releases it. Any
/// thread may use it. In a forked child, requests are errors and nothing is released, since the
/// driver's objects belong to the parent.
///
/// A failed kernel (for example an illegal address) breaks the context permanently, and all
/// operations then fail with its error. Only a new process helps.
#[derive(Clone)]
pub struct CudaContext {
    primary: Arc<PrimaryContext>,
}

/// A retained primary context.
struct PrimaryContext {
    gpu: CudaGpu,
    /// The driver's pointer, which is only ever passed back to it.
    handle: usize,
    fork_guard: ForkGuard,
    events: EventPool,
}

impl CudaContext {
    /// Retains the primary context of `gpu`, and makes it if nothing in the process has. This takes
    /// some hundred milliseconds, and memory of the GPU.
    ///
    /// # Errors
    /// The driver's.
    #[doc(alias = "cuDevicePrimaryCtxRetain")]
    pub fn retain(gpu: &CudaGpu) -> Result<CudaContext, CudaError> {
        let mut handle = null_mut();
        // SAFETY: the device exists, and `handle` is a local variable; dropping the context
        // releases it.
        let answer = unsafe { (gpu.driver().functions().basic.retain)(&raw mut handle, gpu.device()) };
        gpu.driver().checked(answer, format_args!("cuDevicePrimaryCtxRetain of {gpu}"))?;
        let (handle, fork_guard) = (handle as usize, ForkGuard::current());
        let primary = PrimaryContext { gpu: *gpu, handle, fork_guard, events: EventPool::default() };
        Ok(CudaContext { primary: Arc::new(primary) })
    }

    /// Returns the GPU of the context.
    #[must_use]
    pub fn gpu(&self) -> &CudaGpu {
        &self.primary.gpu
    }

    /// Returns the driver.
    #[must_use]
    pub fn driver(&self) -> Driver {
        self.primary.gpu.driver()
    }

    /// Returns whether this process is a forked child of the process that retained the context, and
    /// cannot use it.
    #[must_use]
    pub fn is_inherited(&self) -> bool {
        !self.primary.fork_guard.is_current()
    }

    /// Checks that this process is the one that retained the context.
    pub(crate) fn check_process(&self) -> Result<(), CudaError> {
        match self.is_inherited() {
            true => Err(CudaError::Forked { host: process::host_name() }),
            false => Ok(()),
        }
    }

    /// Returns the number of the context, which no other context of the process has or had.
    #[doc(alias = "cuCtxGetId")]
    pub(crate) fn number(&self) -> Result<u64, CudaError> {
        let functions = self.driver().functions().context_numbers()?;
        let mut number = 0;
        // SAFETY: `number` is a local variable, and the context is retained and not gone, since it
        // is current.
        self.call("cuCtxGetId", || unsafe {
            (functions.number)(self.primary.handle as sys::CUcontext, &raw mut number)
        })?;
        Ok(number)
    }

    /// Returns the events that wait for their next use.
    pub(crate) fn events(&self) -> &EventPool {
        &self.primary.events
    }

    /// Makes the context current in this thread until the returned value is dropped, which restores
    /// the caller's. Values of one thread must be dropped in the reverse order.
    ///
    /// The methods of this crate do so themselves.
    ///
    /// # Errors
    /// [`CudaError::Forked`] in a forked child, and the driver's.
    #[doc(alias = "cuCtxPushCurrent")]
    pub fn make_current(&self) -> Result<CurrentContext<'_>, CudaError> {
        self.check_process()?;
        // SAFETY: the context is retained as long as `self` lives.
        let answer = unsafe { (self.driver().functions().basic.push)(self.primary.handle as sys::CUcontext) };
        self.driver().checked(answer, "cuCtxPushCurrent")?;
        Ok(CurrentContext { context: self, of_this_thread: PhantomData })
    }

    /// Calls a function of the driver in this context; `doing` names it with its operands.
    pub(crate) fn call(
        &self,
        doing: impl fmt::Display,
        function: impl FnOnce() -> c_uint,
    ) -> Result<(), CudaError> {
        let _current = self.make_current()?;
        self.driver().checked(function(), doing)
    }

    /// Ends `object` for a destructor, by a function of the driver. A failure is logged, unless the
    /// context is gone and the object with it. Does nothing in a forked child.
    pub(crate) fn end(&self, object: impl fmt::Display, doing: &str, function: impl FnOnce() -> c_uint) {
        if self.is_inherited() {
            return;
        }
        match self.call(doing, function) {
            Err(error) if !error.is_context_gone() => tracing::error!("{object} is not released: {error}"),
            _ => {}
        }
    }
}

impl PartialEq for CudaContext {
    /// Compares the contexts themselves: two retained contexts of one GPU are equal.
    fn eq(&self, other: &CudaContext) -> bool {
        // Two drivers of tests may have the same handle.
        self.primary.handle == other.primary.handle && self.driver().address() == other.driver().address()
    }
}

impl Eq for CudaContext {}

impl fmt::Debug for CudaContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CudaContext").field("gpu", &self.primary.gpu).finish_non_exhaustive()
    }
}

impl PrimaryContext {
    /// Destroys the events of the pool: the context may have other users, who keep it.
    fn end_events(&self) {
        let (events, driver) = (self.events.take_all(), self.gpu.driver());
        let functions = driver.functions();
        let destroy = || -> Result<(), CudaError> {
            let destroy = functions.events()?.destroy;
            // SAFETY: the context is still retained.
            let pushed = unsafe { (functions.basic.push)(self.handle as sys::CUcontext) };
            driver.checked(pushed, "cuCtxPushCurrent")?;
            let destroyed = events.iter().try_for_each(|&event| {
                // SAFETY: made by `cuEventCreate`, and without a user.
                let answer = unsafe { destroy(event as sys::CUevent) };
                driver.checked(answer, "cuEventDestroy")
            });
            let mut popped = null_mut();
            // SAFETY: pops the context that was pushed above.
            let answer = unsafe { (functions.basic.pop)(&raw mut popped) };
            destroyed.and(driver.checked(answer, "cuCtxPopCurrent"))
        };
        match destroy() {
            Err(error) if !error.is_context_gone() => tracing::error!("events are not released: {error}"),
            _ => {}
        }
    }
}

impl Drop for PrimaryContext {
    fn drop(&mut self) {
        if !self.fork_guard.is_current() {
            return;
        }
        let driver = self.gpu.driver();
        if !self.events.is_empty() {
            self.end_events();
        }
        // SAFETY: `retain` has retained the context, and it is released once.
        let answer = unsafe { (driver.functions().basic.release)(self.gpu.device()) };
        match driver.checked(answer, format_args!("cuDevicePrimaryCtxRelease of {}", self.gpu)) {
            Err(error) if !error.is_context_gone() => tracing::error!("{error}"),
            _ => {}
        }
    }
}

/// A context that is current in this thread. Dropping this restores the caller's context.
#[must_use = "the context is current only as long as this lives"]
pub struct CurrentContext<'a> {
    context: &'a CudaContext,
    /// A pointer, since another thread has another current context.
    of_this_thread: PhantomData<*const ()>,
}

impl CurrentContext<'_> {
    /// Returns the context.
    #[must_use]
    pub fn context(&self) -> &CudaContext {
        self.context
    }
}

impl fmt::Debug for CurrentContext<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CurrentContext").field("gpu", self.context.gpu()).finish_non_exhaustive()
    }
}

impl Drop for CurrentContext<'_> {
    fn drop(&mut self) {
        if self.context.is_inherited() {
            return;
        }
        let (driver, mut popped) = (self.context.driver(), null_mut());
        // SAFETY: pops the context that `make_current` has pushed in this thread; calls in between
        // push and pop in pairs.
        let answer = unsafe { (driver.functions().basic.pop)(&raw mut popped) };
        match driver.checked(answer, "cuCtxPopCurrent") {
            Err(error) if !error.is_context_gone() => tracing::error!("{error}"),
            _ => {}
        }
    }
}
