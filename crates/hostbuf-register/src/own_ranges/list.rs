//! The list of this copy of the library: own ranges, registrations that can write, and observers of
//! freezing.

use std::sync::{Arc, Mutex, MutexGuard, Weak};

use hostbuf_os::poison::IgnorePoison;

use crate::span::Span;
use hostbuf_os::forking::hold_around_fork;

/// The owner of a range, for as long as it lives.
pub type Keeper = Weak<dyn Send + Sync>;

/// A declared range.
pub(super) struct Range {
    pub(super) number: u64,
    pub(super) span: Span,
    pub(super) keeper: Keeper,
    /// True if no new registration may let a device write to the range.
    pub(super) frozen: bool,
}

/// A part of a program that registers memory on its own, such as a cache, and ends its
/// registrations when a range is frozen.
pub trait FreezeObserver: Send + Sync {
    /// Ends what uses registrations of `span`, such as a ring that moves bytes through it. It is
    /// called on all observers before the first [`prepare`](FreezeObserver::prepare), and before
    /// registrations of the user are looked for.
    ///
    /// # Errors
    /// A message that names a use which does not end.
    fn end_uses(&self, _: Span) -> std::result::Result<(), String> {
        Ok(())
    }

    /// Ends all unused registrations of `span`, and returns when none is left by which a device
    /// could write there. [`may_write`](super::may_write) refuses new ones already. Registrations
    /// for reading end too: they pin pages, so the kernel would not seal the memory, and not every
    /// device can be restricted to reading.
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

/// The list.
pub(super) struct OwnRanges {
    pub(super) ranges: Vec<Range>,
    /// Registrations that a user holds: their number, range and device.
    pub(super) writing: Vec<(u64, Span, String)>,
    numbers: u64,
    pub(super) observers: Vec<Weak<dyn FreezeObserver>>,
}

static OWN_RANGES: Mutex<OwnRanges> =
    Mutex::new(OwnRanges { ranges: Vec::new(), writing: Vec::new(), numbers: 0, observers: Vec::new() });

/// Returns the list of this copy, locked.
pub(super) fn own_ranges() -> MutexGuard<'static, OwnRanges> {
    hold_around_fork!(OWN_RANGES: OwnRanges);
    OWN_RANGES.lock().ignore_poison()
}

impl OwnRanges {
    /// Returns a number that no range and no registration has.
    pub(super) fn next_number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    /// Returns whether a part of `span` is in a frozen range.
    pub(super) fn is_frozen(&self, span: Span) -> bool {
        let live = |range: &&Range| range.keeper.strong_count() > 0 && range.span.overlaps(span);
        self.ranges.iter().filter(live).any(|range| range.frozen)
    }

    /// Returns the observers that freezing `span` has to ask.
    ///
    /// # Errors
    /// A message that names a registration of the user.
    pub(super) fn observers_for(
        &self,
        span: Span,
    ) -> std::result::Result<Vec<Arc<dyn FreezeObserver>>, String> {
        match self.writing.iter().find(|(_, held, _)| held.overlaps(span)) {
            Some((_, held, device)) => Err(format!(
                "this process has registered {held} with {device} with write access: end that registration first, or register \
                 the range for reading only"
            )),
            None => Ok(self.observers.iter().filter_map(Weak::upgrade).collect()),
        }
    }
}

/// Returns the declared range of this copy that contains `span`, and its keeper.
pub(super) fn find_here(span: Span) -> Option<(Span, Arc<dyn Send + Sync>)> {
    let own = own_ranges();
    let inside = own.ranges.iter().filter(|range| range.span.contains(span));
    inside
        .map(|range| (range.span, range.keeper.upgrade()))
        .find_map(|(whole, keeper)| Some((whole, keeper?)))
}

/// Returns whether this copy's list has a part of `span` as frozen.
pub(super) fn is_frozen_here(span: Span) -> bool {
    own_ranges().is_frozen(span)
}

/// Lets all observers of this copy end what uses registrations of `span`. It is called without the
/// lock, since ending a use waits for devices.
pub(super) fn end_uses_here(span: Span) -> std::result::Result<(), String> {
    let observers: Vec<_> = own_ranges().observers.iter().filter_map(Weak::upgrade).collect();
    observers.iter().try_for_each(|observer| observer.end_uses(span))
}

/// Runs the first step of freezing in this copy for another one, which has marked the range.
pub(super) fn prepare_here(span: Span) -> std::result::Result<(), String> {
    end_uses_here(span)?;
    let observers = own_ranges().observers_for(span)?;
    observers.iter().try_for_each(|observer| observer.prepare(span))
}

/// Runs the second step of freezing in this copy for another one.
pub(super) fn commit_here(span: Span) -> std::result::Result<(), String> {
    let observers = own_ranges().observers_for(span)?;
    observers.iter().try_for_each(|observer| observer.commit(span))
}
