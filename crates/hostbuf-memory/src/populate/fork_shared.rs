//! Memory that a process shares with its children.

#![allow(unsafe_code, reason = "maps memory and makes views of it")]

use std::io;
use std::ops::Deref;

use crate::error::{Error, Result};
use hostbuf_os::array::Zero;

/// A fixed number of zeroed elements, which the children that are forked later share.
pub(super) struct ForkShared<T> {
    at: *mut T,
    count: usize,
}

impl<T: Zero + Sync> ForkShared<T> {
    /// Maps `count` elements, at least one.
    pub(super) fn new(count: usize) -> Result<ForkShared<T>> {
        // SAFETY: a new anonymous mapping.
        let at = unsafe {
            let (rw, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
            libc::mmap(std::ptr::null_mut(), count * size_of::<T>(), rw, flags, -1, 0)
        };
        if at == libc::MAP_FAILED {
            return Err(Error::os("mapping memory for workers")(io::Error::last_os_error()));
        }
        Ok(ForkShared { at: at.cast(), count })
    }
}

impl<T> Deref for ForkShared<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: mapped until drop and zeroed by the kernel, which is a valid value of each
        // element.
        unsafe { std::slice::from_raw_parts(self.at, self.count) }
    }
}

impl<T> Drop for ForkShared<T> {
    fn drop(&mut self) {
        // SAFETY: new() mapped it; the children have mappings of their own.
        unsafe { libc::munmap(self.at.cast(), self.count * size_of::<T>()) };
    }
}
