//! The opened driver of cuFile.

#![allow(unsafe_code, reason = "the library is called by foreign functions")]

use std::fmt;
use std::sync::{Arc, Mutex, Weak};

use hostbuf_cuda::CudaContext;
use hostbuf_os::fork_guard::ForkGuard;
use hostbuf_os::poison::IgnorePoison;

use super::cufile_error::{CuFileCode, CuFileError};
use super::cufile_functions::CuFileFunctions;

/// The driver that this process has opened, while anything uses it.
static OPENED: Mutex<Weak<OpenedDriver>> = Mutex::new(Weak::new());

/// cuFile, opened for files and memory of one GPU. Clones and all that is made with it keep it
/// open; the last one in the process closes it.
///
/// In a forked child, requests return CUDA's error of a fork, and drops do nothing.
#[derive(Clone)]
pub struct CuFileDriver {
    context: CudaContext,
    opened: Arc<OpenedDriver>,
}

/// The driver of the process.
struct OpenedDriver {
    functions: &'static CuFileFunctions,
    /// True if another part of the process has opened the driver, and closes it.
    is_foreign: bool,
    fork_guard: ForkGuard,
}

impl CuFileDriver {
    /// Loads and opens cuFile for the GPU of `context`. The first call in a process takes some
    /// hundred milliseconds to some seconds.
    ///
    /// # Errors
    /// [`CuFileError`].
    #[doc(alias = "cuFileDriverOpen")]
    pub fn open(context: &CudaContext) -> Result<CuFileDriver, CuFileError> {
        let _current = context.make_current()?;
        let mut known = OPENED.lock().ignore_poison();
        let of_this_process = known.upgrade().filter(|opened| opened.fork_guard.is_current());
        let opened = match of_this_process {
            Some(opened) => opened,
            None => {
                let functions = CuFileFunctions::load()?;
                // SAFETY: a context is current.
                let result = unsafe { (functions.driver_open)() };
                let is_foreign = match CuFileError::check(result, "cuFileDriverOpen") {
                    Ok(()) => false,
                    Err(error) if error.code() == Some(CuFileCode::ALREADY_OPEN) => true,
                    Err(error) => return Err(error),
                };
                let opened =
                    Arc::new(OpenedDriver { functions, is_foreign, fork_guard: ForkGuard::current() });
                *known = Arc::downgrade(&opened);
                opened
            }
        };
        Ok(CuFileDriver { context: context.clone(), opened })
    }

    /// Returns the context of the GPU.
    #[must_use]
    pub fn context(&self) -> &CudaContext {
        &self.context
    }

    pub(super) fn functions(&self) -> &'static CuFileFunctions {
        self.opened.functions
    }

    /// Calls a function in the context.
    ///
    /// # Errors
    /// Those of the context and of the function.
    pub(super) fn call<T>(
        &self,
        function: impl FnOnce() -> Result<T, CuFileError>,
    ) -> Result<T, CuFileError> {
        let _current = self.context.make_current()?;
        function()
    }
}

impl fmt::Debug for CuFileDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CuFileDriver").field("context", &self.context).finish_non_exhaustive()
    }
}

impl Drop for OpenedDriver {
    fn drop(&mut self) {
        if self.is_foreign || !self.fork_guard.is_current() {
            return;
        }
        // SAFETY: opened once, and nothing uses it any more.
        let result = unsafe { (self.functions.driver_close)() };
        if let Err(error) = CuFileError::check(result, "cuFileDriverClose") {
            tracing::error!("{error}");
        }
    }
}
