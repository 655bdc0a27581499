//! The mapping of a memory file that hostbuf makes for itself.

#![allow(unsafe_code, reason = "maps and unmaps a file")]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr::null_mut;

use hostbuf_os::fork_guard::ForkGuard;
use hostbuf_register::Span;

/// A file from its first byte on, mapped at an address of the kernel's choice until this is
/// dropped.
///
/// Other processes may write to the memory at any time, so nothing here makes a reference to it.
#[derive(Debug)]
pub(super) struct SecondMapping {
    span: Span,
    fork_guard: ForkGuard,
}

impl SecondMapping {
    /// Maps `length` bytes, a multiple of the file's pages, and has the kernel map all pages now.
    ///
    /// # Errors
    /// As `mmap(2)`, and as `madvise(2)` with MADV_POPULATE_READ: `EFAULT` if the file ends before
    /// the mapping does, `ENOMEM`.
    pub(super) fn new(file: &File, length: usize, writable: bool) -> io::Result<SecondMapping> {
        let protection = libc::PROT_READ | if writable { libc::PROT_WRITE } else { 0 };
        // SAFETY: a new mapping.
        let at = unsafe { libc::mmap(null_mut(), length, protection, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let span = Span::new(at as usize, length).map_err(io::Error::other)?;
        let mapping = SecondMapping { span, fork_guard: ForkGuard::current() };
        // A child has no use for the mapping, which would keep the file's pages alive in it.
        mapping.advise(libc::MADV_DONTFORK)?;
        match mapping.advise(libc::MADV_POPULATE_READ) {
            // Before Linux 5.14 the device maps the pages when it registers them.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(mapping),
            populated => populated.map(|()| mapping),
        }
    }

    fn advise(&self, advice: i32) -> io::Result<()> {
        // SAFETY: no advice that is passed here changes a byte.
        match unsafe { libc::madvise(self.span.start() as *mut libc::c_void, self.span.len(), advice) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    pub(super) fn span(&self) -> Span {
        self.span
    }
}

impl Drop for SecondMapping {
    fn drop(&mut self) {
        // A forked child does not have the mapping, and may have another one there.
        if self.fork_guard.is_current() {
            // SAFETY: mapped by `new`, and all uses have ended.
            unsafe { libc::munmap(self.span.start() as *mut libc::c_void, self.span.len()) };
        }
    }
}
