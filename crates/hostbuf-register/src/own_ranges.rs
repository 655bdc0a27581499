//! Which addresses of this process are hostbuf's own: their pages change only when hostbuf says so. And through which
//! registrations a device could write there, which freezing has to know.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::error::{Error, Result};
use crate::os::forking::hold_around_fork;
use crate::span::Span;

type Keeper = Weak<dyn Send + Sync>;

struct Range {
    span: Span,
    keeper: Keeper,
    /// No new registration may let a device write there.
    frozen: bool,
}

/// Somebody who registers memory by himself, and can end what he registered.
pub(crate) trait Registrations: Send + Sync {
    /// Ends all registrations of `span` that nobody uses, and returns when none is left by which a device could write. New
    /// ones of that kind are refused by [`may_write`] already. Those for reading go too: they pin pages, which keeps the
    /// kernel from sealing, and not every device can be told to only read.
    ///
    /// # Errors
    /// Which one by which a device could write is in use, for people.
    fn end_for_freezing(&self, span: Span) -> std::result::Result<(), String>;

    /// The same, when nobody has refused on any rank: for what is in nobody's way and cannot be made again.
    ///
    /// # Errors
    /// As [`end_for_freezing`](Registrations::end_for_freezing).
    fn end_at_last(&self, _: Span) -> std::result::Result<(), String> {
        Ok(())
    }
}

struct Owned {
    ranges: Vec<Range>,
    /// Registrations that a user holds: their number, range and device.
    writing: Vec<(u64, Span, String)>,
    numbers: u64,
    others: Vec<Weak<dyn Registrations>>,
}

static OWNED: Mutex<Owned> =
    Mutex::new(Owned { ranges: Vec::new(), writing: Vec::new(), numbers: 0, others: Vec::new() });

fn owned() -> MutexGuard<'static, Owned> {
    hold_around_fork!(OWNED: Owned);
    OWNED.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Owned {
    fn is_frozen(&self, span: Span) -> bool {
        let live = |range: &&Range| range.keeper.strong_count() > 0 && range.span.overlaps(span);
        self.ranges.iter().filter(live).any(|range| range.frozen)
    }
}

/// Notes that `span` stays mapped, with the same pages, as long as `keeper` lives.
pub(crate) fn add(span: Span, keeper: Keeper) {
    let mut owned = owned();
    owned.ranges.retain(|range| range.keeper.strong_count() > 0);
    owned.ranges.push(Range { span, keeper, frozen: false });
}

/// The whole range of hostbuf's that `span` lies in, if it is hostbuf's, and what keeps its memory.
///
/// Not to be asked with a lock that the monitor takes: others allocate while they hold the one here.
pub(crate) fn find(span: Span) -> Option<(Span, Arc<dyn Send + Sync>)> {
    let owned = owned();
    let inside = owned.ranges.iter().filter(|range| range.span.contains(span));
    inside
        .map(|range| (range.span, range.keeper.upgrade()))
        .find_map(|(whole, keeper)| Some((whole, keeper?)))
}

/// Whether a device may be let write into `span`.
///
/// # Errors
/// [`Error::Freeze`] when a part of it is frozen, or is just being frozen.
pub(crate) fn may_write(span: Span) -> Result<()> {
    if owned().is_frozen(span) { Err(refusal(span)) } else { Ok(()) }
}

fn refusal(span: Span) -> Error {
    Error::Freeze {
        why: format!(
            "{span} belongs to a frozen buffer, and a device could change it: register it for reading"
        ),
    }
}

/// Lets whoever registers by himself hear of freezing.
pub(crate) fn tell(other: Weak<dyn Registrations>) {
    let mut owned = owned();
    owned.others.retain(|other| other.strong_count() > 0);
    owned.others.push(other);
}

/// A user's registration by which a device can write: a buffer is not frozen under it.
#[derive(Debug)]
pub(crate) struct Writing {
    number: u64,
}

impl Writing {
    /// Notes one, before it is made.
    ///
    /// # Errors
    /// As [`may_write`].
    pub(crate) fn new(span: Span, device: String) -> Result<Writing> {
        let mut owned = owned();
        if owned.is_frozen(span) {
            return Err(refusal(span));
        }
        let number = owned.numbers;
        owned.numbers += 1;
        owned.writing.push((number, span, device));
        Ok(Writing { number })
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        owned().writing.retain(|(number, ..)| *number != self.number);
    }
}

/// From here on no device is let write into `span`; undone when this is dropped before [`keep`](Freezing::keep).
pub(crate) struct Freezing {
    span: Span,
    undo: bool,
    others: Vec<Arc<dyn Registrations>>,
}

impl Freezing {
    /// Ends what registers `span` and is not in use, and lets nothing be registered any more by which a device could write.
    ///
    /// # Errors
    /// [`Error::Freeze`]: a registration that is held by a user or is in use; nothing of the user's has ended.
    pub(crate) fn begin(span: Span) -> Result<Freezing> {
        let (mut freezing, others) = {
            let mut owned = owned();
            if let Some((_, held, device)) = owned.writing.iter().find(|(_, held, _)| held.overlaps(span)) {
                let why = format!(
                    "{held} is registered with {device} by this process so that the device can write into it: end that \
                     registration first, or make it for reading only"
                );
                return Err(Error::not_frozen(why));
            }
            let undo = !owned.is_frozen(span);
            owned
                .ranges
                .iter_mut()
                .filter(|range| range.span.overlaps(span))
                .for_each(|range| range.frozen = true);
            let others: Vec<_> = owned.others.iter().filter_map(Weak::upgrade).collect();
            (Freezing { span, undo, others: Vec::new() }, others)
        };
        // Without the lock: ending asks a device.
        for other in &others {
            other.end_for_freezing(span).map_err(Error::not_frozen)?;
        }
        freezing.others = others;
        Ok(freezing)
    }

    /// Ends the rest, when [`begin`](Freezing::begin) has gone well on all ranks.
    ///
    /// # Errors
    /// [`Error::Freeze`]: what a device has not ended.
    pub(crate) fn finish(&self) -> Result<()> {
        let mut each = self.others.iter();
        each.try_for_each(|other| other.end_at_last(self.span).map_err(Error::not_frozen))
    }

    /// The range is frozen for good.
    pub(crate) fn keep(mut self) {
        self.undo = false;
    }
}

impl Drop for Freezing {
    fn drop(&mut self) {
        if self.undo {
            let span = self.span;
            owned()
                .ranges
                .iter_mut()
                .filter(|range| range.span.overlaps(span))
                .for_each(|range| range.frozen = false);
        }
    }
}
