//! The calls of MPI's standard ABI that an agent makes.

#![allow(unsafe_code, reason = "loads functions of C")]

use std::ffi::{c_char, c_int, c_void};
use std::mem::ManuallyDrop;

use hostbuf::{Error, Result};
use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};

/// The name of the library.
const LIBRARY: &str = "libmpi_abi.so.1";

/// A handle: in C a pointer to an incomplete type. Predefined ones have small values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub(super) struct AbiHandle(pub(super) *mut c_void);

impl AbiHandle {
    const fn predefined(value: usize) -> AbiHandle {
        AbiHandle(std::ptr::without_provenance_mut(value))
    }
}

/// `MPI_COMM_WORLD`.
pub(super) const WORLD: AbiHandle = AbiHandle::predefined(0x101);
/// `MPI_REQUEST_NULL`.
pub(super) const NO_REQUEST: AbiHandle = AbiHandle::predefined(0x180);
/// `MPI_BYTE`.
pub(super) const BYTE: AbiHandle = AbiHandle::predefined(0x247);
/// `MPI_INT64_T`.
pub(super) const SIGNED_WORD: AbiHandle = AbiHandle::predefined(0x258);
/// `MPI_UINT64_T`.
pub(super) const UNSIGNED_WORD: AbiHandle = AbiHandle::predefined(0x259);
/// `MPI_SUM`.
pub(super) const SUM: AbiHandle = AbiHandle::predefined(0x21);
/// `MPI_MIN`.
pub(super) const MIN: AbiHandle = AbiHandle::predefined(0x22);
/// `MPI_MAX`.
pub(super) const MAX: AbiHandle = AbiHandle::predefined(0x23);
/// `MPI_BAND`.
pub(super) const AND: AbiHandle = AbiHandle::predefined(0x28);
/// `MPI_THREAD_FUNNELED`.
pub(super) const FUNNELED: c_int = 1024;
/// `MPI_ANY_SOURCE`.
pub(super) const ANY_SOURCE: c_int = -1;
/// `MPI_STATUS_IGNORE`.
pub(super) const NO_STATUS: *mut c_void = std::ptr::null_mut();

/// The functions, each of which returns `MPI_SUCCESS` (0) or an error code.
pub(super) struct MpiCalls {
    pub(super) init_thread:
        unsafe extern "C" fn(*mut c_int, *mut *mut *mut c_char, c_int, *mut c_int) -> c_int,
    pub(super) finalize: unsafe extern "C" fn() -> c_int,
    pub(super) comm_dup: unsafe extern "C" fn(AbiHandle, *mut AbiHandle) -> c_int,
    pub(super) comm_split: unsafe extern "C" fn(AbiHandle, c_int, c_int, *mut AbiHandle) -> c_int,
    pub(super) comm_free: unsafe extern "C" fn(*mut AbiHandle) -> c_int,
    pub(super) comm_rank: unsafe extern "C" fn(AbiHandle, *mut c_int) -> c_int,
    pub(super) comm_size: unsafe extern "C" fn(AbiHandle, *mut c_int) -> c_int,
    pub(super) all_gather: unsafe extern "C" fn(
        *const c_void,
        c_int,
        AbiHandle,
        *mut c_void,
        c_int,
        AbiHandle,
        AbiHandle,
        *mut AbiHandle,
    ) -> c_int,
    pub(super) broadcast:
        unsafe extern "C" fn(*mut c_void, c_int, AbiHandle, c_int, AbiHandle, *mut AbiHandle) -> c_int,
    pub(super) all_reduce: unsafe extern "C" fn(
        *const c_void,
        *mut c_void,
        c_int,
        AbiHandle,
        AbiHandle,
        AbiHandle,
        *mut AbiHandle,
    ) -> c_int,
    pub(super) test: unsafe extern "C" fn(*mut AbiHandle, *mut c_int, *mut c_void) -> c_int,
    pub(super) probe: unsafe extern "C" fn(c_int, c_int, AbiHandle, *mut c_int, *mut c_void) -> c_int,
    /// Never unloaded: threads of an MPI, and the destructors of its thread keys, outlive
    /// `MPI_Finalize`.
    _library: ManuallyDrop<Library>,
}

impl MpiCalls {
    /// Loads the library from the folders that the dynamic linker searches.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if there is none, or if a function is missing.
    pub(super) fn load() -> Result<MpiCalls> {
        // The plug-ins of an MPI use its symbols.
        // SAFETY: loads an MPI, whose constructors have no preconditions.
        let library = unsafe { Library::open(Some(LIBRARY), RTLD_NOW | RTLD_GLOBAL) }.map_err(refused)?;
        // SAFETY: the types are those of the standard.
        unsafe {
            Ok(MpiCalls {
                init_thread: function(&library, c"MPI_Init_thread")?,
                finalize: function(&library, c"MPI_Finalize")?,
                comm_dup: function(&library, c"MPI_Comm_dup")?,
                comm_split: function(&library, c"MPI_Comm_split")?,
                comm_free: function(&library, c"MPI_Comm_free")?,
                comm_rank: function(&library, c"MPI_Comm_rank")?,
                comm_size: function(&library, c"MPI_Comm_size")?,
                all_gather: function(&library, c"MPI_Iallgather")?,
                broadcast: function(&library, c"MPI_Ibcast")?,
                all_reduce: function(&library, c"MPI_Iallreduce")?,
                test: function(&library, c"MPI_Test")?,
                probe: function(&library, c"MPI_Iprobe")?,
                _library: ManuallyDrop::new(library),
            })
        }
    }
}

/// Looks up a function.
///
/// # Safety
/// `F` must be the type of the function.
unsafe fn function<F: Copy>(library: &Library, name: &std::ffi::CStr) -> Result<F> {
    // SAFETY: the caller guarantees the type.
    let found = unsafe { library.get::<F>(name) };
    found.map(|function| *function).map_err(refused)
}

fn refused(error: libloading::Error) -> Error {
    let source = std::error::Error::source(&error).map(ToString::to_string);
    Error::Unsupported {
        what: format!("hostbuf-agent-mpi-abi on {}", hostbuf_os::process::host_name()),
        why: format!(
            "{}. Install the same MPI at the same path on all hosts, or name another agent with --agent",
            source.unwrap_or_else(|| error.to_string())
        ),
    }
}
