//! The list of the copies that have joined.

#![allow(unsafe_code, reason = "follows pointers to the tables of other copies")]

use std::ffi::{CString, c_void};
use std::fmt;
use std::iter::successors;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering, fence};
use std::sync::{Mutex, MutexGuard};

use super::copy_name::CopyName;
use super::note::{self, FoundCopy};
use super::table::{ABI, CopyTable};
use crate::forking::hold_around_fork;
use crate::poison::IgnorePoison;

/// The anchor's table, once this copy has joined.
static ANCHOR: AtomicPtr<CopyTable> = AtomicPtr::new(null_mut());
/// The lock of a thread with which this copy joins.
static JOINING: Mutex<()> = Mutex::new(());
/// The number of attempts to find the anchor while other threads unload libraries.
const ATTEMPTS: usize = 16;

/// The reason why this copy could not join the others.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NotJoined(pub String);

impl fmt::Display for NotJoined {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot find the other copies of hostbuf in this process: {}", self.0)
    }
}

impl std::error::Error for NotJoined {}

/// Another copy of the library in this process, which has joined.
#[derive(Clone, Copy)]
pub struct OtherCopy(&'static CopyTable);

impl OtherCopy {
    /// Returns the name of the copy.
    #[must_use]
    pub fn name(self) -> CopyName {
        self.0.name()
    }

    /// Returns the pointer that the copy has given to [`join`]. Its type depends on the version of
    /// the table only, and copies with another version are not returned by [`others`].
    #[must_use]
    pub fn operations(self) -> *const c_void {
        self.0.operations.load(Ordering::Acquire)
    }
}

/// Joins this copy with the others. `operations` points to a static structure that the others use;
/// only the first call sets it. Later calls cost one load.
///
/// # Errors
/// The reason why the copies cannot find each other.
#[inline]
pub fn join(operations: *const c_void) -> Result<(), NotJoined> {
    if ANCHOR.load(Ordering::Acquire).is_null() { join_first(operations) } else { Ok(()) }
}

/// Returns the anchor, if this copy has joined.
pub(super) fn anchor() -> Option<&'static CopyTable> {
    // SAFETY: null, or the table of an object that stays loaded.
    unsafe { ANCHOR.load(Ordering::Acquire).as_ref() }
}

fn joining() -> MutexGuard<'static, ()> {
    hold_around_fork!(JOINING: ());
    JOINING.lock().ignore_poison()
}

#[cold]
fn join_first(operations: *const c_void) -> Result<(), NotJoined> {
    // Without the lock: the loader has locks of its own, under which it runs constructors.
    let (own, anchor) = find_anchor()?;
    anchor.map_claims().map_err(|e| NotJoined(format!("mapping a page: {e}")))?;
    let path = CString::new(own.display_path()).unwrap_or_default();
    let _joining = joining();
    if !ANCHOR.load(Ordering::Acquire).is_null() {
        return Ok(());
    }
    let table = note::own();
    table.describe(path, operations);
    anchor.add(table);
    // Another copy may be looking at the list at this moment. Either it finds this copy there, or
    // this one sees all that the other has stored before it looked.
    fence(Ordering::SeqCst);
    ANCHOR.store(std::ptr::from_ref(anchor).cast_mut(), Ordering::Release);
    Ok(())
}

/// Finds this copy and the anchor, and prevents that they are unloaded.
fn find_anchor() -> Result<(FoundCopy, &'static CopyTable), NotJoined> {
    for _ in 0..ATTEMPTS {
        let (own, first) = own_and_first()?;
        if !own.keep_loaded() {
            return Err(NotJoined(format!("{} cannot be kept loaded", own.display_path())));
        }
        // Nothing is listed before an object that is first and stays loaded.
        if std::ptr::eq(own.table, first.table) {
            return Ok((own, note::own()));
        }
        // It may have been unloaded since it was found.
        if !first.keep_loaded() {
            continue;
        }
        if own_and_first()?.1.table == first.table {
            // SAFETY: the table of an object that stays loaded, and whose note has this version.
            return Ok((own, unsafe { &*first.table }));
        }
    }
    Err(NotJoined("other threads load and unload libraries all the time".into()))
}

/// Returns this copy and the first copy with the same version of the table. New objects are listed
/// last, so an anchor that stays loaded stays the anchor.
fn own_and_first() -> Result<(FoundCopy, FoundCopy), NotJoined> {
    let copies: Vec<FoundCopy> = note::scan().into_iter().filter(|copy| copy.abi == ABI).collect();
    let own = copies.iter().find(|copy| std::ptr::eq(copy.table, note::own())).cloned();
    let (Some(own), Some(first)) = (own, copies.first().cloned()) else {
        return Err(NotJoined(
            "the dynamic loader does not list this copy, or its ELF note is missing".into(),
        ));
    };
    Ok((own, first))
}

/// Returns the other copies that have joined. All that this thread has stored before is visible to
/// a copy that joins later.
pub fn others() -> impl Iterator<Item = OtherCopy> {
    fence(Ordering::SeqCst);
    let first = anchor().and_then(CopyTable::first);
    successors(first, |table| table.next()).filter(|table| !std::ptr::eq(*table, note::own())).map(OtherCopy)
}

/// Returns whether no other copy has joined. It orders no stores of this thread, which
/// [`others`] does: a thread that must be seen by a copy that joins at this moment calls that.
#[inline]
#[must_use]
pub fn is_alone() -> bool {
    let Some(first) = anchor().and_then(CopyTable::first) else { return true };
    std::ptr::eq(first, note::own()) && first.next().is_none()
}

/// Returns a copy in this process whose table has another version, so that it cannot be asked
/// anything.
#[must_use]
pub fn incompatible() -> Option<CopyName> {
    let mut copies = note::scan().into_iter();
    let copy = copies.find(|copy| copy.abi != ABI)?;
    Some(CopyName { path: copy.display_path(), version: copy.version })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_finds_its_own_copy() {
        static OPERATIONS: u8 = 0;
        let operations = (&raw const OPERATIONS).cast();
        assert_eq!(join(operations), Ok(()));
        assert_eq!(join(null_mut()), Ok(()));
        let copies = note::scan();
        assert_eq!(copies.len(), 1);
        assert!(std::ptr::eq(copies[0].table, note::own()));
        assert_eq!((copies[0].abi, copies[0].version.as_str()), (ABI, env!("CARGO_PKG_VERSION")));
        assert_eq!(others().count(), 0);
        assert!(is_alone());
        assert_eq!(incompatible(), None);
        let name = note::own().name();
        let exe = std::env::current_exe().unwrap();
        assert_eq!(name.path, exe.to_str().unwrap());
        assert_eq!(note::own().operations.load(Ordering::Relaxed).cast_const(), operations);
    }
}
