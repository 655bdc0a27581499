//! The errors of cuFile.

use std::ffi::{CStr, c_uint};
use std::{fmt, io};

use hostbuf_cuda::CudaError;
use hostbuf_os::process;

/// The result of most functions (`CUfileError_t`). The codes are numbers, since a newer library
/// may return others than those that this version knows.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct CuFileResult {
    pub(super) code: c_uint,
    pub(super) cuda: c_uint,
}

/// An error code of cuFile. A newer library may return codes that this version does not know, so it
/// is a number.
#[doc(alias = "CUfileOpError")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CuFileCode(c_uint);

/// The usual cause of two codes, also in the compatibility mode: cuFile has not found the file
/// system of a file in udev's database.
const UNKNOWN_FILE_SYSTEM: &str = "if cufile.log names a volume or udev, mount the host's /run/udev into the container; \
                                   for a file on tmpfs, use the backend mmap or posix";

/// The codes, their names in `cufile.h`, and the causes and remedies that are known.
const CODES: [(c_uint, &str, &str); 34] = [
    (5001, "CU_FILE_DRIVER_NOT_INITIALIZED", "nvidia-fs is not loaded: set allow_compat_mode in cufile.json"),
    (5002, "CU_FILE_DRIVER_INVALID_PROPS", ""),
    (5003, "CU_FILE_DRIVER_UNSUPPORTED_LIMIT", ""),
    (5004, "CU_FILE_DRIVER_VERSION_MISMATCH", "libcufile and nvidia-fs are of different releases"),
    (5005, "CU_FILE_DRIVER_VERSION_READ_ERROR", ""),
    (5006, "CU_FILE_DRIVER_CLOSING", "the process ends cuFile"),
    (5007, "CU_FILE_PLATFORM_NOT_SUPPORTED", "use the backend uring or posix"),
    (
        5008,
        "CU_FILE_IO_NOT_SUPPORTED",
        "the file system has no GPUDirect Storage, and allow_compat_mode is off",
    ),
    (5009, "CU_FILE_DEVICE_NOT_SUPPORTED", "the GPU has no GPUDirect Storage, and allow_compat_mode is off"),
    (5010, "CU_FILE_NVFS_DRIVER_ERROR", "load nvidia-fs, or set allow_compat_mode in cufile.json"),
    (5011, "CU_FILE_CUDA_DRIVER_ERROR", ""),
    (5012, "CU_FILE_CUDA_POINTER_INVALID", "the address does not belong to the GPU"),
    (5013, "CU_FILE_CUDA_MEMORY_TYPE_INVALID", "the memory is not that of a GPU"),
    (5014, "CU_FILE_CUDA_POINTER_RANGE_ERROR", "the range exceeds the allocation"),
    (5015, "CU_FILE_CUDA_CONTEXT_MISMATCH", "the memory belongs to another context"),
    (5016, "CU_FILE_INVALID_MAPPING_SIZE", ""),
    (5017, "CU_FILE_INVALID_MAPPING_RANGE", ""),
    (5018, "CU_FILE_INVALID_FILE_TYPE", "only regular files and block devices are supported"),
    (5019, "CU_FILE_INVALID_FILE_OPEN_FLAG", ""),
    (5020, "CU_FILE_DIO_NOT_SET", "the file system refuses O_DIRECT"),
    (5022, "CU_FILE_INVALID_VALUE", ""),
    (5023, "CU_FILE_MEMORY_ALREADY_REGISTERED", "register a range once"),
    (5024, "CU_FILE_MEMORY_NOT_REGISTERED", ""),
    (5025, "CU_FILE_PERMISSION_DENIED", ""),
    (5026, "CU_FILE_DRIVER_ALREADY_OPEN", ""),
    (5027, "CU_FILE_HANDLE_NOT_REGISTERED", UNKNOWN_FILE_SYSTEM),
    (5028, "CU_FILE_HANDLE_ALREADY_REGISTERED", ""),
    (5029, "CU_FILE_DEVICE_NOT_FOUND", ""),
    (5030, "CU_FILE_INTERNAL_ERROR", UNKNOWN_FILE_SYSTEM),
    (5031, "CU_FILE_GETNEWFD_FAILED", "raise ulimit -n"),
    (5033, "CU_FILE_NVFS_SETUP_ERROR", ""),
    (5034, "CU_FILE_IO_DISABLED", ""),
    (5036, "CU_FILE_GPU_MEMORY_PINNING_FAILED", "the BAR1 of the GPU is too small or full"),
    (5043, "CU_FILE_NOMEM_ERROR", ""),
];

impl CuFileCode {
    /// Another part of the process has opened the driver.
    pub(super) const ALREADY_OPEN: CuFileCode = CuFileCode(5026);

    /// Returns cuFile's number.
    #[must_use]
    pub const fn number(self) -> u32 {
        self.0
    }

    /// Returns the name in `cufile.h`, or a text for a code without one.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.row().map_or("an error without a name", |(_, name, _)| name)
    }

    fn advice(self) -> &'static str {
        let advice = self.row().map_or("", |(_, _, advice)| advice);
        if advice.is_empty() { "see cufile.log in the working directory" } else { advice }
    }

    fn row(self) -> Option<(c_uint, &'static str, &'static str)> {
        CODES.into_iter().find(|(number, ..)| *number == self.0)
    }
}

/// A request to cuFile that failed.
#[derive(Debug)]
#[non_exhaustive]
pub enum CuFileError {
    /// The host has no libcufile.
    NoLibrary {
        /// The reason of the loader.
        why: String,
        /// The host.
        host: String,
    },
    /// The library is too old, and lacks a function.
    MissingFunction {
        /// The symbol of the function.
        function: String,
        /// The host.
        host: String,
    },
    /// A function returned an error.
    Call {
        /// The function, with its operands.
        doing: String,
        /// cuFile's code.
        code: CuFileCode,
        /// The code of the CUDA driver, 0 if it has not failed.
        cuda: u32,
        /// The host.
        host: String,
    },
    /// A read or write failed in the operating system, or opening a file did.
    Io {
        /// The operation, with its operands.
        doing: String,
        /// The error.
        source: io::Error,
    },
    /// The CUDA driver refused the context.
    Cuda(CudaError),
}

impl CuFileError {
    pub(super) fn no_library() -> CuFileError {
        let why = "libcufile.so.0 cannot be loaded".to_owned();
        CuFileError::NoLibrary { why, host: process::host_name() }
    }

    pub(super) fn missing(function: &CStr) -> CuFileError {
        let function = function.to_string_lossy().into_owned();
        CuFileError::MissingFunction { function, host: process::host_name() }
    }

    /// Converts the result of a function that is described by `doing`.
    pub(super) fn check(result: CuFileResult, doing: impl fmt::Display) -> Result<(), CuFileError> {
        match result.code {
            0 => Ok(()),
            code => Err(CuFileError::Call {
                doing: doing.to_string(),
                code: CuFileCode(code),
                cuda: result.cuda,
                host: process::host_name(),
            }),
        }
    }

    /// Converts the result of a read or a write: a number of bytes, -1 with an error number, or a
    /// negative code.
    pub(super) fn check_bytes(result: isize, doing: impl fmt::Display) -> Result<u64, CuFileError> {
        // Allocations below may change it.
        let source = io::Error::last_os_error();
        match result {
            0.. => Ok(result as u64),
            -1 => Err(CuFileError::Io { doing: doing.to_string(), source }),
            code => {
                let code = u32::try_from(code.unsigned_abs()).unwrap_or(u32::MAX);
                CuFileError::check(CuFileResult { code, cuda: 0 }, doing).map(|()| 0)
            }
        }
    }

    /// Returns cuFile's code, if cuFile returned one.
    #[must_use]
    pub fn code(&self) -> Option<CuFileCode> {
        match self {
            CuFileError::Call { code, .. } => Some(*code),
            _ => None,
        }
    }
}

impl fmt::Display for CuFileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CuFileError::NoLibrary { why, host } => {
                write!(
                    f,
                    "{why} on {host}: install NVIDIA's GPUDirect Storage, or use the backend uring or posix"
                )
            }
            CuFileError::MissingFunction { function, host } => {
                write!(f, "libcufile on {host} has no {function}: install a newer one")
            }
            CuFileError::Call { doing, code, cuda, host } => {
                let (name, number, advice) = (code.name(), code.number(), code.advice());
                write!(f, "{doing} returned {name} ({number}), CUDA error {cuda}, on {host}: {advice}")
            }
            CuFileError::Io { doing, source } => write!(f, "{doing}: {source}"),
            CuFileError::Cuda(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for CuFileError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            CuFileError::Io { source, .. } => Some(source),
            CuFileError::Cuda(error) => Some(error),
            _ => None,
        }
    }
}

impl From<CudaError> for CuFileError {
    fn from(error: CudaError) -> CuFileError {
        CuFileError::Cuda(error)
    }
}

impl From<CuFileError> for io::Error {
    fn from(error: CuFileError) -> io::Error {
        let kind = match &error {
            CuFileError::Io { source, .. } => source.kind(),
            CuFileError::NoLibrary { .. } | CuFileError::MissingFunction { .. } => io::ErrorKind::Unsupported,
            _ => io::ErrorKind::Other,
        };
        io::Error::new(kind, error)
    }
}
