//! The address ranges whose mapping does not change while their owner lives, such as a host buffer
//! or a slab of a pool.
//!
//! A cache registers memory in such a range without watching it. Ranges can be [frozen](Freezing):
//! from then on no device may write there. Process-wide: all caches and owners of a process share
//! the list.

use std::sync::{Arc, Mutex, MutexGuard, Weak};

use crate::error::{Error, Result};
use crate::poison::IgnorePoison;
use crate::span::Span;
use hostbuf_os::forking::hold_around_fork;

/// The owner of a range, for as long as it lives.
pub type Keeper = Weak<dyn Send + Sync>;

struct Range {
    number: u64,
    span: Span,
    keeper: Keeper,
    /// True if no new registration may let a device write to the range.
    frozen: bool,
}

/// A part of a program that registers memory on its own, such as a cache, and ends its
/// registrations when a range is frozen.
pub trait FreezeObserver: Send + Sync {
    /// Ends all unused registrations of `span`, and returns when none is left by which a device
    /// could write there. [`may_write`] refuses new ones already. Registrations for reading end
    /// too: they pin pages, so the kernel would not seal the memory, and not every device can be
    /// restricted to reading.
    ///
    /// # Errors
    /// A message that names a registration which is in use and lets a device write.
    fn prepare(&self, span: Span) -> std::result::Result<(), String>;

    /// Ends the registrations that cannot be made again. It is called after
    /// [`prepare`](FreezeObserver::prepare) has succeeded on all ranks.
    ///
    /// # Errors
    /// As [`prepare`](FreezeObserver::prepare).
    fn commit(&self, _: Span) -> std::result::Result<(), String> {
        Ok(())
    }
}

struct OwnRanges {
    ranges: Vec<Range>,
    /// Registrations that a user holds: their number, range and device.
    writing: Vec<(u64, Span, String)>,
    numbers: u64,
    observers: Vec<Weak<dyn FreezeObserver>>,
}

static OWN_RANGES: Mutex<OwnRanges> =
    Mutex::new(OwnRanges { ranges: Vec::new(), writing: Vec::new(), numbers: 0, observers: Vec::new() });

fn own_ranges() -> MutexGuard<'static, OwnRanges> {
    hold_around_fork!(OWN_RANGES: OwnRanges);
    OWN_RANGES.lock().ignore_poison()
}

impl OwnRanges {
    fn next_number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    fn is_frozen(&self, span: Span) -> bool {
        let live = |range: &&Range| range.keeper.strong_count() > 0 && range.span.overlaps(span);
        self.ranges.iter().filter(live).any(|range| range.frozen)
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
/// do not watch this memory, so a device would go on using the old pages.
#[must_use]
#[allow(unsafe_code, reason = "a false declaration lets a device use freed pages")]
pub unsafe fn declare(span: Span, keeper: Keeper) -> OwnRange {
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
/// memory.
///
/// It must not be called under a lock that a cache's monitor takes: other threads allocate while
/// they hold the lock of the list.
#[must_use]
pub fn find(span: Span) -> Option<(Span, Arc<dyn Send + Sync>)> {
    let own = own_ranges();
    let inside = own.ranges.iter().filter(|range| range.span.contains(span));
    inside
        .map(|range| (range.span, range.keeper.upgrade()))
        .find_map(|(whole, keeper)| Some((whole, keeper?)))
}

/// Checks that a device may get write access to `span`.
///
/// # Errors
/// [`Error::Freeze`] if a part of it is frozen, or is being frozen.
pub fn may_write(span: Span) -> Result<()> {
    if own_ranges().is_frozen(span) { Err(refusal(span)) } else { Ok(()) }
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
        let mut own = own_ranges();
        if own.is_frozen(span) {
            return Err(refusal(span));
        }
        let number = own.next_number();
        own.writing.push((number, span, device));
        Ok(Writing { number })
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
    pub fn begin(span: Span) -> Result<Freezing> {
        let (mut freezing, observers) = {
            let mut own = own_ranges();
            if let Some((_, held, device)) = own.writing.iter().find(|(_, held, _)| held.overlaps(span)) {
                let why = format!(
                    "this process has registered {held} with {device} with write access: end that registration first, or register \
                     the range for reading only"
                );
                return Err(Error::not_frozen(why));
            }
            let undo = !own.is_frozen(span);
            own.ranges
                .iter_mut()
                .filter(|range| range.span.overlaps(span))
                .for_each(|range| range.frozen = true);
            let observers: Vec<_> = own.observers.iter().filter_map(Weak::upgrade).collect();
            (Freezing { span, undo, observers: Vec::new() }, observers)
        };
        // Without the lock, since ending a registration calls a device.
        for observer in &observers {
            observer.prepare(span).map_err(Error::not_frozen)?;
        }
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
        each.try_for_each(|observer| observer.commit(self.span).map_err(Error::not_frozen))
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
