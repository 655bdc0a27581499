//! The table of a copy, which the other copies read.

#![allow(unsafe_code, reason = "the table has pointers to other copies")]

use std::ffi::{CStr, CString, c_char, c_void};
use std::io;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use super::claims_page::ClaimsPage;
use super::copy_name::CopyName;

/// The version of [`CopyTable`], of the operations to which it points, and of [`ClaimsPage`]. Any
/// change of them requires another number.
pub(super) const ABI: u32 = 1;

const VERSION: &CStr = match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
    Ok(version) => version,
    Err(_) => panic!("a version has no zero byte"),
};

/// The table of a copy, which other copies read. All fields begin as zeroes.
#[repr(C)]
pub(super) struct CopyTable {
    /// The next copy in the anchor's list.
    next: AtomicPtr<CopyTable>,
    path: AtomicPtr<c_char>,
    version: AtomicPtr<c_char>,
    /// The operations of the copy, of a type that this module does not know.
    pub(super) operations: AtomicPtr<c_void>,
    /// The copy that has joined last, in the anchor.
    first: AtomicPtr<CopyTable>,
    /// The page of claims, in the anchor.
    claims: AtomicPtr<ClaimsPage>,
    /// The last number of a claim, in the anchor. A forked child continues from its parent's.
    pub(super) last_claim: AtomicU64,
}

impl CopyTable {
    /// Makes the table of a copy that has not joined.
    pub(super) const fn new() -> CopyTable {
        CopyTable {
            next: AtomicPtr::new(null_mut()),
            path: AtomicPtr::new(null_mut()),
            version: AtomicPtr::new(null_mut()),
            operations: AtomicPtr::new(null_mut()),
            first: AtomicPtr::new(null_mut()),
            claims: AtomicPtr::new(null_mut()),
            last_claim: AtomicU64::new(0),
        }
    }

    /// Stores the name and the operations of this copy.
    pub(super) fn describe(&self, path: CString, operations: *const c_void) {
        self.path.store(path.into_raw(), Ordering::Release);
        self.version.store(VERSION.as_ptr().cast_mut(), Ordering::Release);
        self.operations.store(operations.cast_mut(), Ordering::Release);
    }

    /// Returns the name of the copy.
    pub(super) fn name(&self) -> CopyName {
        let text = |pointer: &AtomicPtr<c_char>| {
            // SAFETY: a text of `describe`, which is never freed.
            unsafe { text(pointer.load(Ordering::Acquire)) }
        };
        CopyName { path: text(&self.path), version: text(&self.version) }
    }

    /// Adds a described copy to the list of this anchor.
    pub(super) fn add(&self, copy: &'static CopyTable) {
        let mut first = self.first.load(Ordering::Acquire);
        loop {
            copy.next.store(first, Ordering::Release);
            let new = std::ptr::from_ref(copy).cast_mut();
            match self.first.compare_exchange(first, new, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return,
                Err(other) => first = other,
            }
        }
    }

    /// Returns the first copy in the list of this anchor.
    pub(super) fn first(&self) -> Option<&'static CopyTable> {
        // SAFETY: null, or the table of a copy that stays loaded, as all copies in the list.
        unsafe { self.first.load(Ordering::Acquire).as_ref() }
    }

    /// Returns the copy that follows this one in the list.
    pub(super) fn next(&self) -> Option<&'static CopyTable> {
        // SAFETY: as above.
        unsafe { self.next.load(Ordering::Acquire).as_ref() }
    }

    /// Maps the page of claims of this anchor, unless it is mapped.
    pub(super) fn map_claims(&self) -> io::Result<()> {
        if self.claims().is_none() {
            let page = ClaimsPage::map()?;
            let first = self.claims.compare_exchange(null_mut(), page, Ordering::AcqRel, Ordering::Acquire);
            if first.is_err() {
                // Another copy has mapped one meanwhile.
                // SAFETY: mapped above, and nobody else knows it.
                unsafe { ClaimsPage::unmap(page) };
            }
        }
        Ok(())
    }

    /// Returns the page of claims of this anchor.
    pub(super) fn claims(&self) -> Option<&'static ClaimsPage> {
        // SAFETY: null, or a page that is never unmapped.
        unsafe { self.claims.load(Ordering::Acquire).as_ref() }
    }
}

/// Returns the text at `pointer`, or an empty one if it is null.
///
/// # Safety
/// `pointer` must be null, or a text that is never freed.
unsafe fn text(pointer: *const std::ffi::c_char) -> String {
    if pointer.is_null() {
        return String::new();
    }
    // SAFETY: by this function's contract.
    unsafe { CStr::from_ptr(pointer) }.to_string_lossy().into_owned()
}
