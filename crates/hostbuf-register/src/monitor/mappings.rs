//! The mappings of this process: their bounds, and whether they can be watched.

use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::os::fd::AsRawFd;
use std::sync::Mutex;

use hostbuf_os::poison::IgnorePoison;

use super::watched::Unwatched;
use crate::span::Span;
use hostbuf_os::mapping_query::mapping_at_or_after;
use hostbuf_os::maps;

/// The reason why a mapping is not watched.
pub(super) enum WatchRefusal {
    /// It cannot be watched.
    Certain(Unwatched),
    /// Nothing is mapped there, or the mappings have changed during the look-up, which is worth
    /// another attempt.
    Retry,
}

/// A mapping of this process.
#[derive(Clone, Copy)]
pub(super) struct ProcessMapping {
    pub(super) span: Span,
    /// True if it is private anonymous memory. Files and shared memory also change in ways that the
    /// kernel does not report.
    pub(super) is_own: bool,
}

/// Access to `/proc/self/maps`, opened once at the start: later there may be no free descriptor, or
/// no `/proc`.
pub(super) struct ProcessMappings {
    /// The file for queries by address, `None` on a kernel without them.
    queries: Option<File>,
    /// The file for reading the list. The monitor's thread never locks it, since the lock is held
    /// while the list is read.
    list: Mutex<File>,
    /// The kernel's own mappings (`[vdso]` and the like), which a query cannot distinguish from
    /// anonymous memory. They never move.
    special: Vec<Span>,
}

impl ProcessMappings {
    /// Opens the list, and uses queries if the kernel supports them.
    ///
    /// # Errors
    /// As `open(2)`: `ENOENT` where /proc is not mounted.
    pub(super) fn open() -> std::io::Result<ProcessMappings> {
        let mut mappings = ProcessMappings::by_list()?;
        mappings.queries =
            File::open("/proc/self/maps").ok().filter(|queries| mapping_at_or_after(queries, 0).is_ok());
        Ok(mappings)
    }

    /// Opens the list only, as on a kernel without queries.
    fn by_list() -> std::io::Result<ProcessMappings> {
        let list = Mutex::new(File::open("/proc/self/maps")?);
        let mut mappings = ProcessMappings { queries: None, list, special: Vec::new() };
        let mut special = Vec::new();
        mappings.read_list(|span, mapping| {
            if mapping.path.starts_with(b"[v") {
                special.push(span);
            }
            true
        });
        mappings.special = special;
        Ok(mappings)
    }

    /// Passes each mapping that ends after `from`, lowest first, until `each` returns false.
    /// Returns false if the kernel reports an error. This is not an atomic snapshot: mappings that
    /// change meanwhile may be missing or incomplete.
    pub(super) fn each_from(&self, from: usize, mut each: impl FnMut(ProcessMapping) -> bool) -> bool {
        let Some(queries) = &self.queries else {
            return self.read_list(|span, mapping| {
                let is_own = mapping.inode == 0 && mapping.private && !mapping.path.starts_with(b"[v");
                span.end() <= from || each(ProcessMapping { span, is_own })
            });
        };
        let mut at = from;
        loop {
            let Ok(found) = mapping_at_or_after(queries, at) else { return false };
            let Some(found) = found else { return true };
            if let Ok(span) = Span::new(found.start, found.end - found.start) {
                let is_own = found.inode == 0 && found.private && !self.special.contains(&span);
                if !each(ProcessMapping { span, is_own }) {
                    return true;
                }
            }
            at = found.end;
        }
    }

    /// Passes each mapping of the list, lowest first, until `each` returns false. Returns false if
    /// reading fails.
    fn read_list(&self, mut each: impl FnMut(Span, maps::Mapped<'_>) -> bool) -> bool {
        let mut list = self.list.lock().ignore_poison();
        list.seek(SeekFrom::Start(0)).is_ok()
            && maps::each_of(list.as_raw_fd(), |mapping| {
                match Span::new(mapping.start, mapping.end - mapping.start) {
                    Ok(span) => each(span, mapping),
                    Err(_) => true,
                }
            })
            .is_ok()
    }

    /// Passes each mapping that overlaps `span`, lowest first.
    pub(super) fn each_in(&self, span: Span, mut each: impl FnMut(ProcessMapping)) {
        self.each_from(span.start(), |mapping| {
            let inside = mapping.span.start() < span.end();
            if inside {
                each(mapping);
            }
            inside && mapping.span.end() < span.end()
        });
    }

    /// Returns the hull of the mappings that contain `span`, if all of them can be watched.
    pub(super) fn watchable(&self, span: Span) -> Result<Span, WatchRefusal> {
        let mut whole: Option<Span> = None;
        let mut all = true;
        self.each_in(span, |mapping| {
            let one = mapping.span;
            whole = match whole {
                None => Some(one),
                Some(so_far) if so_far.end() == one.start() => {
                    Span::new(so_far.start(), so_far.len() + one.len()).ok()
                }
                Some(so_far) => Some(so_far),
            };
            all &= mapping.is_own;
        });
        if !all {
            return Err(WatchRefusal::Certain(Unwatched::Memory));
        }
        whole.filter(|whole| whole.contains(span)).ok_or(WatchRefusal::Retry)
    }

    /// Returns whether `span` is exactly one private anonymous mapping; always false on a kernel
    /// without queries. It takes no lock.
    pub(super) fn is_exactly(&self, span: Span) -> bool {
        let mut found = false;
        self.queries.is_some()
            && self.each_from(span.start(), |mapping| {
                found = mapping.span == span && mapping.is_own;
                false
            })
            && found
    }

    /// Returns the file for queries, if the kernel supports them.
    pub(super) fn queries(&self) -> Option<&File> {
        self.queries.as_ref()
    }

    /// Returns whether one mapping contains all of `span`: two mappings may differ in their
    /// protection.
    pub(super) fn is_one(&self, span: Span) -> bool {
        let mut one = false;
        self.each_in(span, |mapping| one |= mapping.span.contains(span));
        one
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares queries with the list for anonymous memory, a file, the kernel's own mappings, and
    /// an unmapped address.
    #[test]
    fn queries_and_the_list_see_the_same_mappings() {
        let (by_query, by_list) = (ProcessMappings::open().unwrap(), ProcessMappings::by_list().unwrap());
        if by_query.queries.is_none() {
            return eprintln!("skipped: PROCMAP_QUERY: this kernel has none");
        }
        assert!(by_list.queries.is_none() && !by_list.special.is_empty());
        let own = vec![1u8; 1 << 20];
        let code = queries_and_the_list_see_the_same_mappings as *const () as usize;
        let own = Span::new(own.as_ptr() as usize, own.len()).unwrap();
        let spans = [own, Span::new(code, 1).unwrap(), by_list.special[0], Span::new(1, 1).unwrap()];
        for span in spans {
            let kind = |mappings: &ProcessMappings| match mappings.watchable(span) {
                Ok(whole) => {
                    assert!(whole.contains(span));
                    "own"
                }
                Err(WatchRefusal::Certain(_)) => "not own",
                Err(WatchRefusal::Retry) => "not mapped",
            };
            assert_eq!(kind(&by_query), kind(&by_list), "{span}");
            assert_eq!(by_query.is_one(span), by_list.is_one(span), "{span}");
        }
    }
}
