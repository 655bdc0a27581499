//! The address ranges whose mapping does not change while their owner lives, such as a host buffer
//! or a slab of a pool.
//!
//! A cache registers memory in such a range without watching it. Ranges can be [frozen](Freezing):
//! from then on no device may write there. Process-wide: all caches and owners of a process share
//! the list. If the process contains several copies of this library, each has its own list, and
//! they ask each other.

mod list;
mod other_copies;

use std::sync::{Arc, Weak};

use crate::error::{Error, Result};
use crate::span::Span;
pub use list::{FreezeObserver, Keeper};
use list::{Range, end_uses_here, find_here, is_frozen_here, own_ranges};
pub(crate) use other_copies::check_all;
use other_copies::join;

/// Joins this copy with the others before something is added to the list. A copy that cannot find
/// the others works alone; the operations that need all copies fail.
fn join_or_warn() {
    if let Err(error) = join() {
        tracing::warn!(%error, "other copies of hostbuf in this process do not see what this one registers");
    }
}

/// A declaration that a range keeps its mapping. It ends when this is dropped.
#[derive(Debug)]
pub struct OwnRange {
    number: u64,
}

/// Declares that `span` stays mapped, with the same pages, as long as `keeper` lives. A
/// registration of memory in `span` keeps `keeper` alive.
///
/// # Safety
/// While `keeper` lives, nothing may unmap or remap a part of `span` or discard its pages: caches
/// do not watch this memory, so a device would go on using the old pages. Frozen pages may be
/// replaced by others with the same bytes, since a device that still reads the old ones reads the
/// same.
#[must_use]
#[allow(unsafe_code, reason = "a false declaration lets a device use freed pages")]
pub unsafe fn declare(span: Span, keeper: Keeper) -> OwnRange {
    join_or_warn();
    let mut own = own_ranges();
    let number = own.next_number();
    own.ranges.push(Range { number, span, keeper, frozen: false });
    OwnRange { number }
}

impl Drop for OwnRange {
    fn drop(&mut self) {
        own_ranges().ranges.retain(|range| range.number != self.number);
    }
}

/// Returns the declared range that contains `span`, and its keeper. Returns `None` for other
/// memory. Ranges of the other copies of this library in the process count too.
///
/// It must not be called under a lock that a cache's monitor takes: other threads allocate while
/// they hold the lock of the list.
#[must_use]
pub fn find(span: Span) -> Option<(Span, Arc<dyn Send + Sync>)> {
    find_here(span).or_else(|| other_copies::find_elsewhere(span))
}

/// Checks that a device may get write access to `span`.
///
/// # Errors
/// [`Error::Freeze`] if a part of it is frozen, or is being frozen.
pub fn may_write(span: Span) -> Result<()> {
    if is_frozen_here(span) || other_copies::any_froze(span) { Err(refusal(span)) } else { Ok(()) }
}

fn refusal(span: Span) -> Error {
    Error::Freeze {
        why: format!(
            "{span} belongs to a frozen buffer, and a device could change it: register it for reading"
        ),
    }
}

/// Adds an observer of freezing, for as long as it lives.
pub fn observe(observer: Weak<dyn FreezeObserver>) {
    join_or_warn();
    let mut own = own_ranges();
    own.observers.retain(|observer| observer.strong_count() > 0);
    own.observers.push(observer);
}

/// A registration of the user that lets a device write. Freezing of its range fails while this
/// lives.
#[derive(Debug)]
pub struct Writing {
    number: u64,
}

impl Writing {
    /// Records a registration of `span` with `device`. It is called before the registration is
    /// made.
    ///
    /// # Errors
    /// As [`may_write`].
    pub fn new(span: Span, device: String) -> Result<Writing> {
        join_or_warn();
        let writing = {
            let mut own = own_ranges();
            if own.is_frozen(span) {
                return Err(refusal(span));
            }
            let number = own.next_number();
            own.writing.push((number, span, device));
            Writing { number }
        };
        // A copy that freezes marks the range first, and then looks for this record. So either it
        // finds the record, or this sees the mark.
        if other_copies::any_froze(span) { Err(refusal(span)) } else { Ok(writing) }
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        own_ranges().writing.retain(|(number, ..)| *number != self.number);
    }
}

/// A freezing in progress: no device gets write access to the range any more. Dropping this before
/// [`keep`](Freezing::keep) allows it again.
pub struct Freezing {
    span: Span,
    undo: bool,
    observers: Vec<Arc<dyn FreezeObserver>>,
}

impl Freezing {
    /// Refuses new write access to `span` and ends its unused registrations.
    ///
    /// # Errors
    /// [`Error::Freeze`] names a registration that the user holds or that is in use; no
    /// registration of the user has ended.
    /// [`Error::OtherCopy`] names a copy of the library in this process that cannot be asked.
    pub fn begin(span: Span) -> Result<Freezing> {
        check_all()?;
        end_uses_here(span).map_err(Error::not_frozen)?;
        let (mut freezing, observers) = {
            let mut own = own_ranges();
            let observers = own.observers_for(span).map_err(Error::not_frozen)?;
            let undo = !own.is_frozen(span);
            own.ranges
                .iter_mut()
                .filter(|range| range.span.overlaps(span))
                .for_each(|range| range.frozen = true);
            (Freezing { span, undo, observers: Vec::new() }, observers)
        };
        // Without the lock, since ending a registration calls a device.
        for observer in &observers {
            observer.prepare(span).map_err(Error::not_frozen)?;
        }
        // After the range is marked: a copy that joins later sees the mark.
        other_copies::prepare_elsewhere(span).map_err(Error::not_frozen)?;
        freezing.observers = observers;
        Ok(freezing)
    }

    /// Ends the remaining registrations, after [`begin`](Freezing::begin) has succeeded on all
    /// ranks.
    ///
    /// # Errors
    /// [`Error::Freeze`] names a registration that a device has not ended.
    pub fn finish(&self) -> Result<()> {
        let mut each = self.observers.iter();
        each.try_for_each(|observer| observer.commit(self.span).map_err(Error::not_frozen))?;
        other_copies::commit_elsewhere(self.span).map_err(Error::not_frozen)
    }

    /// Makes the freezing permanent.
    pub fn keep(mut self) {
        self.undo = false;
    }
}

impl Drop for Freezing {
    fn drop(&mut self) {
        if self.undo {
            let span = self.span;
            own_ranges()
                .ranges
                .iter_mut()
                .filter(|range| range.span.overlaps(span))
                .for_each(|range| range.frozen = false);
        }
    }
}
