//! The error of this crate.

use std::fmt;

use hostbuf_os::process;

use crate::cuda_code::CudaCode;

/// A request to the CUDA driver that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CudaError {
    /// The driver returned an error.
    Call {
        /// The function, with its operands.
        doing: String,
        /// The driver's code.
        code: CudaCode,
        /// The driver's name of the code.
        name: String,
        /// The cause and the remedy.
        advice: &'static str,
        /// The host.
        host: String,
    },
    /// The host has no CUDA driver.
    NoDriver {
        /// The host.
        host: String,
    },
    /// The host has libcuda, and it cannot be loaded.
    Unloadable {
        /// The reason of the dynamic linker, with the file.
        why: String,
        /// The host.
        host: String,
    },
    /// This process sees no such GPU.
    NoGpu {
        /// The requested GPU.
        request: String,
        /// The number of GPUs that the process sees.
        visible: u32,
        /// The host.
        host: String,
    },
    /// The driver is too old, and lacks a function.
    MissingFunction {
        /// The symbol of the function.
        function: &'static str,
        /// The host.
        host: String,
    },
    /// A forked child has used an object of its parent.
    Forked {
        /// The host.
        host: String,
    },
    /// An operand is invalid, or the driver granted something else.
    Invalid {
        /// The request, the reason and the remedy.
        what: String,
        /// The host.
        host: String,
    },
}

impl CudaError {
    pub(crate) fn missing(function: &'static str) -> CudaError {
        CudaError::MissingFunction { function, host: process::host_name() }
    }

    pub(crate) fn invalid(what: String) -> CudaError {
        CudaError::Invalid { what, host: process::host_name() }
    }

    /// Returns the driver's code, if the driver returned one.
    #[must_use]
    pub fn code(&self) -> Option<CudaCode> {
        match self {
            CudaError::Call { code, .. } => Some(*code),
            _ => None,
        }
    }

    /// Returns whether the context of the request has ended, and with it everything that was made
    /// in it: [`CudaCode::is_context_gone`].
    #[must_use]
    pub fn is_context_gone(&self) -> bool {
        self.code().is_some_and(CudaCode::is_context_gone)
    }

    /// Returns the message without the name of the host, for a message that states the host itself.
    #[must_use]
    pub fn without_host(&self) -> String {
        self.text("")
    }

    /// Returns the message; `on` names the host and begins with a space, or is empty.
    fn text(&self, on: &str) -> String {
        match self {
            CudaError::Call { doing, code, name, advice, .. } => {
                format!("{doing} returned {name} ({}){on}: {advice}", code.number())
            }
            CudaError::NoDriver { .. } => format!(
                "there is no libcuda.so.1{on}: install NVIDIA's driver, or give the container its libraries"
            ),
            CudaError::Unloadable { why, .. } => format!(
                "libcuda.so.1{on} cannot be loaded: {why}: install NVIDIA's driver again, or correct LD_LIBRARY_PATH"
            ),
            CudaError::NoGpu { visible: 0, .. } => {
                format!("there is no GPU{on}, or CUDA_VISIBLE_DEVICES hides it")
            }
            CudaError::NoGpu { request, visible, .. } => format!(
                "this process sees no {request}{on}: {visible} are visible, counted from 0; see nvidia-smi and \
                 CUDA_VISIBLE_DEVICES"
            ),
            CudaError::MissingFunction { function, .. } => {
                format!("the driver{on} has no {function}: install a newer one")
            }
            CudaError::Forked { .. } => format!(
                "CUDA does not work in a forked child{on}: use it in a process whose parent has not used CUDA before the \
                 fork"
            ),
            CudaError::Invalid { what, .. } if on.is_empty() => what.clone(),
            CudaError::Invalid { what, .. } => format!("{what} ({})", on.trim_start()),
        }
    }

    fn host(&self) -> &str {
        match self {
            CudaError::Call { host, .. }
            | CudaError::NoDriver { host }
            | CudaError::Unloadable { host, .. }
            | CudaError::NoGpu { host, .. }
            | CudaError::MissingFunction { host, .. }
            | CudaError::Forked { host }
            | CudaError::Invalid { host, .. } => host,
        }
    }
}

impl fmt::Display for CudaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text(&format!(" on {}", self.host())))
    }
}

impl std::error::Error for CudaError {}
