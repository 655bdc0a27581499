//! Which addresses of this process are hostbuf's own: their pages change only when hostbuf says so.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::span::Span;

type Keeper = Weak<dyn Send + Sync>;

static RANGES: Mutex<Vec<(Span, Keeper)>> = Mutex::new(Vec::new());

/// Notes that `span` stays mapped, with the same pages, as long as `keeper` lives.
pub(crate) fn add(span: Span, keeper: Keeper) {
    let mut ranges = RANGES.lock().unwrap_or_else(PoisonError::into_inner);
    ranges.retain(|(_, keeper)| keeper.strong_count() > 0);
    ranges.push((span, keeper));
}

fn find(span: Span) -> Option<(Span, Arc<dyn Send + Sync>)> {
    let ranges = RANGES.lock().unwrap_or_else(PoisonError::into_inner);
    ranges
        .iter()
        .filter(|(range, _)| range.contains(span))
        .find_map(|(range, k)| Some((*range, k.upgrade()?)))
}

/// What keeps the memory of `span`, if it is hostbuf's.
pub(crate) fn keeper(span: Span) -> Option<Arc<dyn Send + Sync>> {
    find(span).map(|(_, keeper)| keeper)
}

/// The whole range of hostbuf's that `span` lies in.
pub(crate) fn range(span: Span) -> Option<Span> {
    find(span).map(|(range, _)| range)
}
