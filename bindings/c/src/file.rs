//! Files for transfers.

#![allow(unsafe_code, reason = "the functions are called by C, with pointers of the caller")]

use std::ffi::{CString, OsStr, c_char, c_void};
use std::io;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::{null, null_mut};
use std::sync::Arc;

use ::hostbuf_staging::{Backend, DeviceTarget, File, FileOptions, OpenError};
use library::Error;
use library::sized_struct::SizedInput;

use crate::file_rings::{FileRings, RingDirection};
use crate::pointers::{c_string, input, output, read};
use crate::pool::optional_text;
use crate::status::{CallResult, argument, call, hostbuf_status};
use crate::transfer::{CallerMemory, hostbuf_transfer};

/// A file for transfers. Threads may share it.
pub struct hostbuf_file {
    file: File,
    is_writable: bool,
    rings: FileRings,
    backend: CString,
    why: CString,
}

/// The use of a file.
#[allow(dead_code, reason = "the options have an integer, since the caller's may be invalid")]
#[repr(C)]
#[derive(Clone, Copy)]
pub enum hostbuf_file_mode {
    /// A file that exists is read.
    HOSTBUF_FILE_READ = 0,
    /// A file that exists is read and written.
    HOSTBUF_FILE_UPDATE = 1,
    /// The file is made, without the bytes that it has, and is read and written.
    HOSTBUF_FILE_CREATE = 2,
}

/// The options with which a file is opened. All have defaults.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct hostbuf_file_options {
    /// The size of this structure: initialize it with `HOSTBUF_FILE_OPTIONS_INIT`.
    pub struct_size: usize,
    /// One of `hostbuf_file_mode`.
    pub mode: u32,
    /// 0.
    pub reserved: u32,
    /// The name of the backend: `"auto"`, `"posix"` through the page cache, `"direct"` bypassing
    /// it, `"uring"`, or `"mmap"`. Null means `"auto"`.
    pub backend: *const c_char,
}

sized_struct!(hostbuf_file_options, "HOSTBUF_FILE_OPTIONS_INIT", last: backend: *const c_char);

// SAFETY: numbers and raw pointers.
unsafe impl SizedInput for hostbuf_file_options {
    const DEFAULT: hostbuf_file_options = hostbuf_file_options {
        struct_size: size_of::<hostbuf_file_options>(),
        mode: 0,
        reserved: 0,
        backend: null(),
    };
}

/// Opens a file.
fn open(path: &Path, mode: u32, backend: Backend) -> CallResult<hostbuf_file> {
    let is_writable = match mode {
        0 => false,
        1 | 2 => true,
        other => {
            return Err(argument(format!("invalid mode {other}: expected a value of hostbuf_file_mode")));
        }
    };
    let opening = |error: io::Error| {
        // The path is in the description already.
        let source = error.downcast::<OpenError>().map_or_else(|error| error, |opened| opened.source);
        Error::Os { doing: format!("opening {}", path.display()), source }
    };
    let open = || FileOptions::new().backend(backend).write(is_writable).open(path);
    if mode == 1 {
        // The options of the library make a file that does not exist.
        std::fs::metadata(path).map_err(opening)?;
    }
    let mut file = open().map_err(opening)?;
    if mode == 2 && file.bytes().map_err(opening)? > 0 {
        file.as_std().set_len(0).map_err(opening)?;
        // The backend depends on the length of the file.
        file = open().map_err(opening)?;
    }
    let text = |text: String| CString::new(text).unwrap_or_default();
    let (backend, why) = (text(file.backend().backend.to_string()), text(file.backend().why.clone()));
    Ok(hostbuf_file { file, is_writable, rings: FileRings::default(), backend, why })
}

/// Opens a file for transfers. Null `options` are the defaults.
///
/// `HOSTBUF_OS`: the file cannot be opened, or the backend cannot read it; the message has the
/// reason.
// Safety: the pointers are null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hostbuf_file_open(
    path: *const c_char,
    options: *const hostbuf_file_options,
    to: Option<&mut MaybeUninit<*mut hostbuf_file>>,
) -> hostbuf_status {
    call(|| {
        let to = output(to, "to", null_mut())?;
        // SAFETY: by the contract of this function.
        let path = unsafe { c_string(path, "path") }?;
        let given = match options.is_null() {
            true => hostbuf_file_options::DEFAULT,
            // SAFETY: by the contract of this function.
            false => unsafe { read(options, "options") }?,
        };
        // SAFETY: by the contract of this function.
        let backend = unsafe { optional_text(given.backend, "options.backend") }?;
        let backend = backend.map_or(Ok(Backend::Auto), str::parse).map_err(argument)?;
        let file = open(Path::new(OsStr::from_bytes(path.to_bytes())), given.mode, backend)?;
        *to = Box::into_raw(Box::new(file));
        Ok(())
    })
}

/// Closes a file. Transfers that have not ended go on. A null file is ignored.
// Safety: `file` is null or a live handle. It is not used again.
#[unsafe(no_mangle)]
pub extern "C" fn hostbuf_file_close(file: Option<Box<hostbuf_file>>) {
    call(|| {
        drop(file);
        Ok(())
    });
}

/// Sets `to` to the number of bytes of a file.
// Safety: the pointers are null or valid.
#[unsafe(no_mangle)]
pub extern "C" fn hostbuf_file_size(
    file: Option<&hostbuf_file>,
    to: Option<&mut MaybeUninit<u64>>,
) -> hostbuf_status {
    call(|| {
        let to = output(to, "to", 0)?;
        let file = input(file, "file")?;
        let asking = |source| Error::Os { doing: "asking for the size of a file".into(), source };
        *to = file.file.bytes().map_err(asking)?;
        Ok(())
    })
}

/// Writes what the page cache has of a file to the disk, and waits for it.
// Safety: `file` is null or a live handle.
#[unsafe(no_mangle)]
pub extern "C" fn hostbuf_file_sync(file: Option<&hostbuf_file>) -> hostbuf_status {
    call(|| {
        let file = input(file, "file")?;
        let doing = || format!("writing {} to the disk", file.file.path().display());
        Ok(file.file.sync().map_err(|source| Error::Os { doing: doing(), source })?)
    })
}

/// Returns the name of the backend of a file, such as `"posix"`, or an empty text if the file is
/// null. The text is valid until the file is closed.
// Safety: `file` is null or a live handle.
#[unsafe(no_mangle)]
pub extern "C" fn hostbuf_file_backend(file: Option<&hostbuf_file>) -> *const c_char {
    file.map_or(c"", |file| &file.backend).as_ptr()
}

/// Returns the reason for the backend of a file, one clause, or an empty text if the file is null.
/// The text is valid until the file is closed.
// Safety: `file` is null or a live handle.
#[unsafe(no_mangle)]
pub extern "C" fn hostbuf_file_backend_reason(file: Option<&hostbuf_file>) -> *const c_char {
    file.map_or(c"", |file| &file.why).as_ptr()
}

/// Starts a transfer.
fn start(
    file: Option<&hostbuf_file>,
    direction: RingDirection,
    memory: CallerMemory,
    gpu: Option<(u32, *mut c_void, bool)>,
    offset: u64,
    to: Option<&mut MaybeUninit<*mut hostbuf_transfer>>,
) -> CallResult<()> {
    let to = output(to, "to", null_mut())?;
    let file = input(file, "file")?;
    if matches!(direction, RingDirection::Write) && !file.is_writable {
        return Err(argument(format!("{} is open for reading only", file.file.path().display())));
    }
    if memory.address == 0 && memory.bytes > 0 {
        return Err(argument("memory is null"));
    }
    let target = DeviceTarget::new(Arc::new(memory));
    let transfer = match gpu {
        None => file.rings.start_on_host(&file.file, direction, target, offset),
        // SAFETY: the callers' contract.
        Some(gpu) => unsafe { file.rings.start_on_gpu(&file.file, direction, target, offset, gpu) },
    }?;
    *to = Box::into_raw(Box::new(transfer));
    Ok(())
}

/// Starts to read `size` bytes of a file from `offset` on into memory of the host. The memory stays
/// allocated, and the program leaves it alone, until `hostbuf_transfer_wait` or
/// `hostbuf_transfer_free` has returned.
// Safety: the pointers are null or valid. No two transfers that have not ended write to the same
// memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hostbuf_file_pread(
    file: Option<&hostbuf_file>,
    memory: *mut c_void,
    size: usize,
    offset: u64,
    to: Option<&mut MaybeUninit<*mut hostbuf_transfer>>,
) -> hostbuf_status {
    let memory = CallerMemory { address: memory as u64, bytes: size as u64, is_host: true };
    call(|| start(file, RingDirection::Read, memory, None, offset, to))
}

/// Starts to write `size` bytes of the host's memory to a file from `offset` on. Nothing changes
/// the memory until the transfer has ended. The bytes are written in any order, and
/// `hostbuf_file_sync` makes them durable.
// Safety: the pointers are null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hostbuf_file_pwrite(
    file: Option<&hostbuf_file>,
    memory: *const c_void,
    size: usize,
    offset: u64,
    to: Option<&mut MaybeUninit<*mut hostbuf_transfer>>,
) -> hostbuf_status {
    let memory = CallerMemory { address: memory as u64, bytes: size as u64, is_host: true };
    call(|| start(file, RingDirection::Write, memory, None, offset, to))
}

/// Starts to read `size` bytes of a file from `offset` on into memory at `address` of the GPU that
/// has the number `gpu` in this process, after the work that `stream` has now, a `CUstream` or
/// `cudaStream_t` of that GPU; null is the default stream. The first call for a GPU loads the
/// driver, uses the primary context, and registers 48 MiB of memory.
///
/// `HOSTBUF_UNSUPPORTED`: there is no driver or no such GPU, or the driver has refused the stream
/// or the memory.
// Safety: the pointers are null or valid, and the stream exists. The memory of the GPU stays
// allocated, and nothing else uses it, until the transfer has ended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hostbuf_file_pread_gpu(
    file: Option<&hostbuf_file>,
    gpu: u32,
    address: u64,
    size: usize,
    offset: u64,
    stream: *mut c_void,
    to: Option<&mut MaybeUninit<*mut hostbuf_transfer>>,
) -> hostbuf_status {
    let memory = CallerMemory { address, bytes: size as u64, is_host: false };
    call(|| start(file, RingDirection::Read, memory, Some((gpu, stream, false)), offset, to))
}

/// Starts to write `size` bytes at `address` of a GPU to a file from `offset` on, after the work
/// that `stream` has now. The rest is as for `hostbuf_file_pread_gpu` and `hostbuf_file_pwrite`.
// Safety: as for `hostbuf_file_pread_gpu`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hostbuf_file_pwrite_gpu(
    file: Option<&hostbuf_file>,
    gpu: u32,
    address: u64,
    size: usize,
    offset: u64,
    stream: *mut c_void,
    to: Option<&mut MaybeUninit<*mut hostbuf_transfer>>,
) -> hostbuf_status {
    let memory = CallerMemory { address, bytes: size as u64, is_host: false };
    call(|| start(file, RingDirection::Write, memory, Some((gpu, stream, false)), offset, to))
}

/// Starts to read as `hostbuf_file_pread_gpu` does, in the order of `stream`: all work that
/// is enqueued on the stream later waits until the transfer has ended, even if it fails or is
/// cancelled. The call does not wait for the transfer. The first such call for a GPU waits until a
/// slot is free, and a transfer of more than about 200 slots (1.6 GiB) runs mostly within the call.
/// Freeing the transfer before it has ended cancels it.
///
/// `HOSTBUF_UNSUPPORTED`: as for `hostbuf_file_pread_gpu`; or the stream is being captured. If the
/// driver is older than CUDA 11.7, `hostbuf_transfer_wait` says so.
// Safety: as for `hostbuf_file_pread_gpu`. The transfer needs nothing that waits for the stream.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hostbuf_file_pread_on(
    file: Option<&hostbuf_file>,
    gpu: u32,
    address: u64,
    size: usize,
    offset: u64,
    stream: *mut c_void,
    to: Option<&mut MaybeUninit<*mut hostbuf_transfer>>,
) -> hostbuf_status {
    let memory = CallerMemory { address, bytes: size as u64, is_host: false };
    call(|| start(file, RingDirection::Read, memory, Some((gpu, stream, true)), offset, to))
}

/// Starts to write as `hostbuf_file_pwrite_gpu` does, in the order of `stream`. The rest is as for
/// `hostbuf_file_pread_on`.
// Safety: as for `hostbuf_file_pread_on`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hostbuf_file_pwrite_on(
    file: Option<&hostbuf_file>,
    gpu: u32,
    address: u64,
    size: usize,
    offset: u64,
    stream: *mut c_void,
    to: Option<&mut MaybeUninit<*mut hostbuf_transfer>>,
) -> hostbuf_status {
    let memory = CallerMemory { address, bytes: size as u64, is_host: false };
    call(|| start(file, RingDirection::Write, memory, Some((gpu, stream, true)), offset, to))
}
