//! The mappings of this process, as the kernel lists them: which can be watched, and where one ends.

use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::os::fd::AsRawFd;
use std::sync::{Mutex, PoisonError};

use super::Unwatched;
use crate::os::maps::{self, Mapped};
use crate::span::Span;

/// Why memory is not watched, or not yet.
pub(super) enum Refusal {
    Certain(Unwatched),
    /// The mappings changed while they were looked at; or nothing is mapped there at all.
    Unclear,
}

/// The kernel's list. Opened once, at the beginning: later there may be no descriptor to be had, nor the file.
pub(super) struct Mappings {
    /// Never taken by the monitor's thread: it is held while the list is read.
    list: Mutex<File>,
}

impl Mappings {
    /// # Errors
    /// As `open(2)`: `ENOENT` where /proc is not mounted.
    pub(super) fn open() -> std::io::Result<Mappings> {
        Ok(Mappings { list: Mutex::new(File::open("/proc/self/maps")?) })
    }

    /// Each mapping, lowest first, until `each` says `false`. `false`: the list cannot be read.
    pub(super) fn each(&self, mut each: impl FnMut(Span, Mapped<'_>) -> bool) -> bool {
        let mut list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        list.seek(SeekFrom::Start(0)).is_ok()
            && maps::each_of(list.as_raw_fd(), |mapping| {
                match Span::new(mapping.start, mapping.end - mapping.start) {
                    Ok(span) => each(span, mapping),
                    Err(_) => true,
                }
            })
            .is_ok()
    }

    /// The whole mappings that `span` lies in, when all of them can be watched.
    pub(super) fn watchable(&self, span: Span) -> Result<Span, Refusal> {
        let mut whole: Option<Span> = None;
        let mut all = true;
        self.each(|one, mapping| {
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

    /// Whether all of `span` lies in one mapping: what lies in two may differ in what may be done with it.
    pub(super) fn is_one(&self, span: Span) -> bool {
        let mut one = false;
        self.each(|mapping, _| {
            one |= mapping.contains(span);
            mapping.start() < span.end()
        });
        one
    }
}

/// Files and shared memory change by other ways too, which nobody tells.
pub(super) fn is_own(mapping: &Mapped<'_>) -> bool {
    mapping.inode == 0 && mapping.private && !mapping.path.starts_with(b"[v")
}
