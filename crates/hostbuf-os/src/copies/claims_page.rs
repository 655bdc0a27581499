//! The page of claims that all copies share.

#![allow(unsafe_code, reason = "maps the page of claims")]

use std::ffi::c_void;
use std::io;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

use crate::memory;
use crate::wiped_page::wiped_page;

/// The number of claims in a page.
pub(super) const CLAIMS: usize = 126;

/// The claims of all copies. Its layout belongs to the version of the table.
#[repr(C, align(64))]
pub(super) struct ClaimsPage {
    pub(super) lock: FutexLock,
    entries: [ClaimEntry; CLAIMS],
}

const _: () = assert!(size_of::<ClaimsPage>() <= 4096);

/// An entry of a claim. It is free if its number is zero.
#[repr(C)]
pub(super) struct ClaimEntry {
    pub(super) number: AtomicU64,
    pub(super) key: AtomicU64,
    /// The table of the copy that made the claim.
    pub(super) holder: AtomicPtr<c_void>,
    /// The kernel's number of the thread that made the claim.
    pub(super) thread: AtomicU64,
}

/// A lock that all copies of the library can use, whatever their standard library's locks look
/// like: 0 is free, 1 is held, and 2 is held with threads that wait.
#[repr(C, align(64))]
pub(super) struct FutexLock(AtomicU32);

impl FutexLock {
    /// Takes the lock.
    pub(super) fn lock(&self) -> FutexGuard<'_> {
        if self.0.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_err() {
            while self.0.swap(2, Ordering::Acquire) != 0 {
                // SAFETY: the address of a live atomic; a spurious return is harmless.
                unsafe { libc::syscall(libc::SYS_futex, self.0.as_ptr(), PRIVATE_WAIT, 2, 0, 0, 0) };
            }
        }
        FutexGuard(self)
    }
}

const PRIVATE_WAIT: i32 = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
const PRIVATE_WAKE: i32 = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;

pub(super) struct FutexGuard<'a>(&'a FutexLock);

impl Drop for FutexGuard<'_> {
    fn drop(&mut self) {
        let word = &self.0.0;
        if word.swap(0, Ordering::Release) == 2 {
            // SAFETY: the address of a live atomic; FUTEX_WAKE reads no memory.
            unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), PRIVATE_WAKE, 1, 0, 0, 0) };
        }
    }
}

impl ClaimsPage {
    /// Maps a page without claims.
    pub(super) fn map() -> io::Result<*mut ClaimsPage> {
        wiped_page().map(|page| page.as_ptr().cast())
    }

    /// Unmaps a page.
    ///
    /// # Safety
    /// The page must come from [`map`](ClaimsPage::map), and no other copy may know it.
    pub(super) unsafe fn unmap(page: *mut ClaimsPage) {
        // SAFETY: by this function's contract.
        unsafe { libc::munmap(page.cast(), memory::page_size() as usize) };
    }

    /// Returns the first entry that `wanted` accepts.
    pub(super) fn entry(&self, wanted: impl Fn(&ClaimEntry) -> bool) -> Option<&ClaimEntry> {
        self.entries.iter().find(|entry| wanted(entry))
    }
}
