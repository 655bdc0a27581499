//! Plain page-locking: the registrar that every machine has.

#![allow(unsafe_code)]

use std::io;
use std::sync::Mutex;

use crate::error::{Bytes, Error, Result};
use crate::locked::Locked;
use crate::poison::IgnorePoison;
use crate::registrar::{Overlap, Probe, Registrar};
use crate::span::{Access, Span};
use hostbuf_os::fork_guard::ForkGuard;
use hostbuf_os::maps::{self, RangeAccess};
use hostbuf_os::{memlock, memory};

/// So many pages are unlocked one by one sooner than `/proc/self/maps` is read.
const FEW: usize = 64;

/// Locks pages into memory by `mlock(2)`. The kernel counts no locks: one munlock unlocks a page
/// however often it was locked. So locks are counted here, and each page is unlocked with its last
/// registration. What the program locks itself is not known here, and is unlocked with it.
///
/// There is no device, so nobody writes: [`Access::WRITE`] is taken for memory that is mapped
/// read-only too.
///
/// The kernel splits a mapping where a locked part of it begins and ends, and an `mremap` over
/// several mappings fails with EFAULT. So while a part of a mapping is registered the program
/// cannot move or grow all of it at once; `realloc` copies then.
///
/// It belongs to the process that made it: locks are not inherited. In a forked child a
/// registration is an error, and ending one does nothing.
///
/// The system call is made directly: address sanitizers put a function that does nothing in the
/// place of the C library's.
#[derive(Debug)]
pub struct Mlock {
    page: usize,
    fork_guard: ForkGuard,
    locked: Mutex<Locked>,
}

impl Default for Mlock {
    fn default() -> Mlock {
        Mlock::new()
    }
}

fn lock(span: Span) -> io::Result<()> {
    // SAFETY: locking changes no content; a range that is not mapped is an error.
    match unsafe { libc::syscall(libc::SYS_mlock, span.start(), span.len()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Unlocks everything up to the first hole. Whether there is none.
fn unlock_to_hole(span: Span) -> io::Result<bool> {
    // SAFETY: unlocking changes no content.
    match unsafe { libc::syscall(libc::SYS_munlock, span.start(), span.len()) } {
        0 => Ok(true),
        _ => Some(io::Error::last_os_error())
            .filter(|error| error.raw_os_error() != Some(libc::ENOMEM))
            .map_or(Ok(false), Err),
    }
}

impl Mlock {
    /// One for this process. Two of them would unlock each other's pages.
    #[must_use]
    pub fn new() -> Mlock {
        let page = memory::page_size() as usize;
        Mlock { page, fork_guard: ForkGuard::current(), locked: Mutex::default() }
    }

    /// Whether this process may lock memory, and how much.
    #[must_use]
    pub fn probe() -> Probe {
        match memlock::limit() {
            Some(0) => Probe::Missing("the limit of locked memory is 0; raise `ulimit -l`".into()),
            Some(limit) => Probe::Ready(format!("{} may be locked (ulimit -l)", Bytes(limit))),
            None => Probe::Ready("memory may be locked without limit".into()),
        }
    }

    fn failed(&self, span: Span, access: Access, why: impl Into<String>, source: io::Error) -> Error {
        Error::Registration { device: self.name(), span, access, why: why.into(), source: Some(source) }
    }

    /// Unlocks what of `span` is mapped, also behind holes. What has been unmapped is unlocked by
    /// that.
    fn unlock(&self, span: Span) -> io::Result<()> {
        if unlock_to_hole(span)? {
            return Ok(());
        }
        if span.len() <= FEW * self.page {
            return self.unlock_pages(span);
        }
        let mut result = Ok(());
        let read = maps::each(|mapped| {
            let (start, end) = (mapped.start.max(span.start()), mapped.end.min(span.end()));
            if let Some(part) = end.checked_sub(start).and_then(|length| Span::new(start, length).ok()) {
                let whole = unlock_to_hole(part);
                // Somebody has unmapped some of it since.
                let whole = whole.and_then(|whole| if whole { Ok(()) } else { self.unlock_pages(part) });
                if whole.is_err() {
                    result = whole;
                }
            }
            mapped.end < span.end()
        });
        // Where there is no /proc the long way is left.
        if read.is_ok() { result } else { self.unlock_pages(span) }
    }

    fn unlock_pages(&self, span: Span) -> io::Result<()> {
        let mut pages = (span.start()..span.end()).step_by(self.page);
        pages.try_for_each(|at| unlock_to_hole(Span::new(at, self.page).map_err(io::Error::other)?).map(drop))
    }
}

/// Why the kernel would not lock `whole`, of which `more` bytes were not locked before.
fn explain(source: &io::Error, whole: Span, more: usize) -> String {
    if source.raw_os_error() == Some(libc::EPERM) {
        return "this process may lock no memory (RLIMIT_MEMLOCK is 0); raise `ulimit -l`".into();
    }
    let taken = memlock::locked();
    if let Some(limit) = memlock::limit().filter(|limit| taken + more as u64 > *limit) {
        let (limit, taken) = (Bytes(limit), Bytes(taken));
        return format!(
            "this process may lock {limit} (RLIMIT_MEMLOCK) and has locked {taken}; raise `ulimit -l`, or register less"
        );
    }
    match maps::range_access(whole.start(), whole.end()) {
        Ok(RangeAccess::Hole(at)) => format!("nothing is mapped at {at:#x}, or it may not be read"),
        _ => format!(
            "the kernel does not lock it, and says no more. In a user namespace (a rootless container) the limit of locked memory \
             binds root too; this process has locked {}: raise `ulimit -l` outside",
            Bytes(taken)
        ),
    }
}

impl Registrar for Mlock {
    type Handle = ();
    type Key = ();

    fn name(&self) -> String {
        "mlock".into()
    }

    fn overlap(&self) -> Overlap {
        Overlap::Free
    }

    fn footprint(&self, span: Span) -> usize {
        span.pages(self.page).len()
    }

    fn key(&self, (): &()) {}

    fn register(&self, span: Span, access: Access) -> Result<()> {
        // The lock may be held by a thread that a child does not have.
        if !self.fork_guard.is_current() {
            return Err(Error::Forked);
        }
        let whole = span.pages(self.page);
        // Held across the system calls: the count and the kernel's state change together. Nothing
        // of the cache waits here.
        let mut locked = self.locked.lock().ignore_poison();
        // All of it, so that a hole shows even where every page beside it is locked already.
        if let Err(source) = lock(whole) {
            let gaps = locked.gaps(whole);
            // It has locked everything up to the first hole, and so that is where unlocking may end
            // too. What others have stays locked.
            for gap in &gaps {
                if !unlock_to_hole(*gap).unwrap_or(false) {
                    break;
                }
            }
            drop(locked);
            let why = explain(&source, whole, gaps.iter().map(|gap| gap.len()).sum());
            return Err(self.failed(span, access, why, source));
        }
        locked.add(whole);
        Ok(())
    }

    fn deregister(&self, span: Span, (): ()) -> Result<()> {
        if !self.fork_guard.is_current() {
            return Ok(());
        }
        let mut locked = self.locked.lock().ignore_poison();
        let mut result = Ok(());
        for run in locked.remove(span.pages(self.page)) {
            if let Err(source) = self.unlock(run) {
                result = Err(self.failed(span, Access::READ, "munlock", source));
            }
        }
        result
    }
}
