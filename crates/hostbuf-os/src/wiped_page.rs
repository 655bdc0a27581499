//! A page of memory that the kernel zeroes in a forked child.

#![allow(unsafe_code, reason = "maps a page that the kernel zeroes in a child")]

use std::io;
use std::ptr::NonNull;

use crate::memory::page_size;

/// Maps a page of zeroes for reading and writing that a forked child sees as zeroes too.
///
/// # Errors
/// The kernel's. Linux before 4.14 does not know the advice.
pub(crate) fn wiped_page() -> io::Result<NonNull<u8>> {
    let length = page_size() as usize;
    let (rw, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new anonymous page.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), length, rw, flags, -1, 0) };
    let page = NonNull::new(at.cast::<u8>()).filter(|_| at != libc::MAP_FAILED);
    let page = page.ok_or_else(io::Error::last_os_error)?;
    // SAFETY: the page mapped above.
    if unsafe { libc::madvise(at, length, libc::MADV_WIPEONFORK) } == 0 {
        return Ok(page);
    }
    let error = io::Error::last_os_error();
    // SAFETY: as above; nobody else knows the page.
    unsafe { libc::munmap(at, length) };
    Err(error)
}
