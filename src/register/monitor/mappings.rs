//! Which mappings of this process can be watched, as the kernel lists them.

use super::Unwatched;
use crate::os::maps::{self, Mapped};
use crate::span::Span;

/// Why memory is not watched, or not yet.
pub(super) enum Refusal {
    Certain(Unwatched),
    /// The mappings changed while they were looked at; or nothing is mapped there at all.
    Unclear,
}

/// The whole mappings that `span` lies in, when all of them can be watched.
pub(super) fn watchable(span: Span) -> Result<Span, Refusal> {
    let mut whole: Option<Span> = None;
    let mut all = true;
    each_mapping(|one, mapping| {
        if one.overlaps(span) {
            whole = match whole {
                None => Some(one),
                Some(so_far) if so_far.end() == one.start() => {
                    Span::new(so_far.start(), so_far.len() + one.len()).ok()
                }
                Some(so_far) => Some(so_far),
            };
            all &= is_own(&mapping);
        }
        one.start() < span.end()
    });
    if !all {
        return Err(Refusal::Certain(Unwatched::Memory));
    }
    whole.filter(|whole| whole.contains(span)).ok_or(Refusal::Unclear)
}

/// Files and shared memory change by other ways too, which nobody tells.
pub(super) fn is_own(mapping: &Mapped<'_>) -> bool {
    mapping.inode == 0 && mapping.private && !mapping.path.starts_with(b"[v")
}

pub(super) fn each_mapping(mut each: impl FnMut(Span, Mapped<'_>) -> bool) {
    // Without /proc nothing can be looked up, and so nothing watched.
    let _ = maps::each(|mapping| match Span::new(mapping.start, mapping.end - mapping.start) {
        Ok(span) => each(span, mapping),
        Err(_) => true,
    });
}
