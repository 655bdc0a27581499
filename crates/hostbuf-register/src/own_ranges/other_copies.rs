//! The own ranges and the freeze observers of the other copies of this library in the process.
//!
//! Each copy has its own list, and offers the others a table of functions ([`Operations`]). A copy
//! asks the others without its own lock, so no thread ever holds the locks of two copies.

#![allow(unsafe_code, reason = "calls functions of other copies of this library")]

use std::ffi::{c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::list::{commit_here, find_here, is_frozen_here, prepare_here};
use crate::error::{Error, Result};
use crate::span::Span;
use hostbuf_os::copies::{self, CopyName};

/// The functions of a copy that the other copies call. Any change requires another version of the
/// table in `hostbuf_os::copies`.
#[repr(C)]
struct Operations {
    /// Returns 1 if no device may get write access to a part of the range, 0 if it may, -1 if the
    /// copy cannot tell.
    is_frozen: extern "C" fn(start: usize, length: usize) -> c_int,
    /// The function that ends the registrations of the range, as
    /// [`FreezeObserver::prepare`](super::list::FreezeObserver).
    prepare: FreezeStep,
    /// The function that ends the remaining ones, as
    /// [`FreezeObserver::commit`](super::list::FreezeObserver).
    commit: FreezeStep,
    /// Returns the keeper of the own range that contains the range, and stores the start and the
    /// length of the whole; null if there is none.
    find: unsafe extern "C" fn(start: usize, length: usize, whole: *mut [usize; 2]) -> *mut c_void,
    /// Releases a keeper that `find` has returned.
    release: unsafe extern "C" fn(keeper: *mut c_void),
}

/// A step of freezing. It returns 0 on success; otherwise it stores a message, cut at `room` bytes,
/// and returns its length.
type FreezeStep = unsafe extern "C" fn(start: usize, length: usize, text: *mut u8, room: usize) -> usize;

/// The longest message of a failed step.
const TEXT_BYTES: usize = 1024;

static OPERATIONS: Operations = Operations { is_frozen, prepare, commit, find, release };

/// Joins this copy with the others, so that they find its ranges and observers.
///
/// # Errors
/// [`Error::Unsupported`] if the copies cannot find each other.
pub(super) fn join() -> Result<()> {
    copies::join((&raw const OPERATIONS).cast()).map_err(|error| Error::Unsupported {
        what: "more than one copy of hostbuf in this process".into(),
        why: error.to_string(),
    })
}

/// Checks that all copies of the library in this process can be asked.
///
/// # Errors
/// [`Error::OtherCopy`] names one with another table; [`Error::Unsupported`] as [`join`].
pub(crate) fn check_all() -> Result<()> {
    join()?;
    let Some(CopyName { path, version, .. }) = copies::incompatible() else { return Ok(()) };
    let own = env!("CARGO_PKG_VERSION");
    let why = format!(
        "cannot work together with this one (hostbuf {own}): use one version of hostbuf in a process"
    );
    Err(Error::OtherCopy { path, version, why })
}

/// A copy that has joined.
struct Other {
    name: CopyName,
    operations: &'static Operations,
}

fn others() -> impl Iterator<Item = Other> {
    copies::others().filter_map(|copy| {
        // SAFETY: the pointer of `join` in a copy with the same version of the table, and so an
        // Operations in an object that stays loaded. Only tests of hostbuf-os join without one.
        let operations = unsafe { copy.operations().cast::<Operations>().as_ref() }?;
        Some(Other { name: copy.name(), operations })
    })
}

/// Returns whether no device may get write access to a part of `span`, by the lists of the others.
pub(super) fn any_froze(span: Span) -> bool {
    others().any(|other| (other.operations.is_frozen)(span.start(), span.len()) != 0)
}

/// Returns the own range of another copy that contains `span`, and its keeper.
#[inline]
pub(super) fn find_elsewhere(span: Span) -> Option<(Span, Arc<dyn Send + Sync>)> {
    // No fence: a range that this thread can know was declared by a copy that had joined before.
    if copies::is_alone() { None } else { ask_for_range(span) }
}

#[cold]
fn ask_for_range(span: Span) -> Option<(Span, Arc<dyn Send + Sync>)> {
    others().find_map(|other| {
        let mut whole = [0; 2];
        // SAFETY: `whole` is valid for writing.
        let keeper = unsafe { (other.operations.find)(span.start(), span.len(), &raw mut whole) };
        if keeper.is_null() {
            return None;
        }
        let keeper: Arc<dyn Send + Sync> =
            Arc::new(ForeignKeeper { keeper, release: other.operations.release });
        Some((Span::new(whole[0], whole[1]).ok()?, keeper))
    })
}

/// Calls `step` of every other copy.
fn each_freezes(span: Span, step: impl Fn(&Operations) -> FreezeStep) -> std::result::Result<(), String> {
    for other in others() {
        let mut text = [0; TEXT_BYTES];
        // SAFETY: the text is valid for writing TEXT_BYTES bytes.
        let length =
            unsafe { step(other.operations)(span.start(), span.len(), text.as_mut_ptr(), TEXT_BYTES) };
        if length != 0 {
            let text = String::from_utf8_lossy(&text[..length.min(TEXT_BYTES)]).into_owned();
            return Err(format!("{text} (by the copy of the library in {})", other.name));
        }
    }
    Ok(())
}

/// Asks the other copies to end their registrations of `span`.
///
/// # Errors
/// The message of the first copy that cannot.
pub(super) fn prepare_elsewhere(span: Span) -> std::result::Result<(), String> {
    each_freezes(span, |operations| operations.prepare)
}

/// Asks the other copies to end their remaining registrations of `span`.
///
/// # Errors
/// As [`prepare_elsewhere`].
pub(super) fn commit_elsewhere(span: Span) -> std::result::Result<(), String> {
    each_freezes(span, |operations| operations.commit)
}

/// The owner of a range of another copy.
struct ForeignKeeper {
    keeper: *mut c_void,
    release: unsafe extern "C" fn(*mut c_void),
}

// SAFETY: the pointer is to an `Arc` of what is Send and Sync.
unsafe impl Send for ForeignKeeper {}
// SAFETY: as above; nothing uses the pointer but the drop.
unsafe impl Sync for ForeignKeeper {}

impl Drop for ForeignKeeper {
    fn drop(&mut self) {
        // SAFETY: from `find` of the same copy, and released once.
        unsafe { (self.release)(self.keeper) };
    }
}

extern "C" fn is_frozen(start: usize, length: usize) -> c_int {
    let asked = || Span::new(start, length).is_ok_and(is_frozen_here);
    catch_unwind(asked).map_or(-1, c_int::from)
}

unsafe extern "C" fn prepare(start: usize, length: usize, text: *mut u8, room: usize) -> usize {
    // SAFETY: by the contract of FreezeStep.
    unsafe { freeze_step(start, length, text, room, prepare_here) }
}

unsafe extern "C" fn commit(start: usize, length: usize, text: *mut u8, room: usize) -> usize {
    // SAFETY: as above.
    unsafe { freeze_step(start, length, text, room, commit_here) }
}

/// Runs a step, and stores its message.
///
/// # Safety
/// `text` must be valid for writing `room` bytes.
unsafe fn freeze_step(
    start: usize,
    length: usize,
    text: *mut u8,
    room: usize,
    step: fn(Span) -> std::result::Result<(), String>,
) -> usize {
    let run = || step(Span::new(start, length).map_err(|invalid| invalid.to_string())?);
    let result = catch_unwind(run).unwrap_or_else(|_| Err("ending a registration panicked".into()));
    let Err(mut message) = result else { return 0 };
    if message.is_empty() {
        message = "ending a registration failed".into();
    }
    let length = message.len().min(room);
    // SAFETY: by this function's contract.
    unsafe { text.copy_from_nonoverlapping(message.as_ptr(), length) };
    length
}

unsafe extern "C" fn find(start: usize, length: usize, whole: *mut [usize; 2]) -> *mut c_void {
    let asked = || find_here(Span::new(start, length).ok()?);
    let Some((span, keeper)) = catch_unwind(asked).ok().flatten() else { return std::ptr::null_mut() };
    // SAFETY: the caller's place.
    unsafe { whole.write([span.start(), span.len()]) };
    Box::into_raw(Box::new(keeper)).cast()
}

unsafe extern "C" fn release(keeper: *mut c_void) {
    // SAFETY: from `find`, and not released before.
    let keeper = unsafe { Box::from_raw(keeper.cast::<Arc<dyn Send + Sync>>()) };
    // The last one unmaps the memory, which must not unwind into another copy.
    let _ = catch_unwind(AssertUnwindSafe(|| drop(keeper)));
}
