//! Page-locking by `mlock(2)`, a registrar that works on every host.

#![allow(unsafe_code, reason = "the system calls have addresses as operands")]

use std::ffi::c_long;
use std::io;
use std::sync::Mutex;

use hostbuf_os::poison::IgnorePoison;

use crate::error::{Bytes, Error, Result};
use crate::lock_counts::LockCounts;
use crate::memory::Memory;
use crate::properties::{Overlap, RegistrarProperties};
use crate::registrar::{Probe, Registrar};
use crate::span::{Access, Span};
use hostbuf_os::fork_guard::ForkGuard;
use hostbuf_os::maps::{self, RangeAccess};
use hostbuf_os::memlock;

/// The largest number of pages that are unlocked one by one. For more pages, reading
/// `/proc/self/maps` is faster.
const FEW_PAGES: usize = 64;

/// A registrar that locks pages into memory by `mlock(2)`. The kernel does not count locks: one
/// `munlock` unlocks a page however often it was locked. This registrar therefore counts the locks,
/// and unlocks a page with its last registration. It does not know of locks that the program makes
/// itself, and removes them too.
///
/// There is no device, so nothing writes: memory that is mapped read-only can be registered with
/// [`Access::WRITE`].
///
/// The kernel splits a mapping where a locked part of it begins and ends, and an `mremap` over
/// several mappings fails with `EFAULT`. So while a part of a mapping is registered, the program
/// cannot move or grow the whole mapping; `realloc` then copies.
///
/// An `Mlock` belongs to the process that made it, since children do not inherit locks. In a forked
/// child, registering returns an error and deregistering does nothing.
///
/// It makes the system calls directly, since address sanitizers replace `mlock` and `munlock` of
/// the C library by functions that do nothing.
#[doc(alias = "mlock")]
#[derive(Debug)]
pub struct Mlock {
    page: usize,
    fork_guard: ForkGuard,
    locked: Mutex<LockCounts>,
}

impl Default for Mlock {
    fn default() -> Mlock {
        Mlock::new()
    }
}

/// Makes the system call `number`, which is `mlock` or `munlock`, for `span`.
fn call(number: c_long, span: Span) -> io::Result<()> {
    debug_assert!([libc::SYS_mlock, libc::SYS_munlock].contains(&number));
    // SAFETY: both calls change no content, and return an error for an unmapped range.
    match unsafe { libc::syscall(number, span.start(), span.len()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn lock(span: Span) -> io::Result<()> {
    call(libc::SYS_mlock, span)
}

/// Unlocks `span` up to the first hole. Returns whether there is no hole.
fn unlock_to_hole(span: Span) -> io::Result<bool> {
    match call(libc::SYS_munlock, span) {
        Ok(()) => Ok(true),
        Err(error) if error.raw_os_error() == Some(libc::ENOMEM) => Ok(false),
        Err(error) => Err(error),
    }
}

impl Mlock {
    /// Makes the registrar of this process. Two of them would unlock each other's pages.
    #[must_use]
    pub fn new() -> Mlock {
        let page = hostbuf_os::memory::page_size() as usize;
        Mlock { page, fork_guard: ForkGuard::current(), locked: Mutex::default() }
    }

    /// Checks whether this process may lock memory, and reports the limit.
    #[must_use]
    pub fn probe() -> Probe {
        match memlock::limit() {
            Some(0) => Probe::Missing("the limit of locked memory is 0; raise `ulimit -l`".into()),
            Some(limit) => Probe::Ready(format!("{} may be locked (ulimit -l)", Bytes(limit))),
            None => Probe::Ready("memory may be locked without limit".into()),
        }
    }

    fn failed(&self, span: Span, access: Access, why: impl Into<String>, source: io::Error) -> Error {
        Error::Registration {
            device: self.name(),
            memory: span.into(),
            access,
            why: why.into(),
            source: Some(source),
        }
    }

    /// Unlocks the mapped parts of `span`, also those after holes. The kernel has unlocked unmapped
    /// parts already.
    fn unlock(&self, span: Span) -> io::Result<()> {
        if unlock_to_hole(span)? {
            return Ok(());
        }
        if span.len() <= FEW_PAGES * self.page {
            return self.unlock_pages(span);
        }
        let mut result = Ok(());
        let read = maps::each(|mapped| {
            let (start, end) = (mapped.start.max(span.start()), mapped.end.min(span.end()));
            if let Some(part) = end.checked_sub(start).and_then(|length| Span::new(start, length).ok()) {
                let whole = unlock_to_hole(part);
                // Another thread may have unmapped a part of it since.
                let whole = whole.and_then(|whole| if whole { Ok(()) } else { self.unlock_pages(part) });
                if whole.is_err() {
                    result = whole;
                }
            }
            mapped.end < span.end()
        });
        // Without /proc, pages are unlocked one by one.
        if read.is_ok() { result } else { self.unlock_pages(span) }
    }

    fn unlock_pages(&self, span: Span) -> io::Result<()> {
        let mut pages = (span.start()..span.end()).step_by(self.page);
        pages.try_for_each(|at| unlock_to_hole(Span::new(at, self.page).map_err(io::Error::other)?).map(drop))
    }
}

/// Returns the reason why the kernel did not lock `whole`, of which `more` bytes were not locked
/// before, and the remedy.
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
            "the kernel does not lock it and gives no further reason. In a user namespace (a rootless container) the limit of \
             locked memory binds root too; this process has locked {}: raise `ulimit -l` outside",
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

    fn properties(&self) -> RegistrarProperties {
        RegistrarProperties::new(Overlap::Free).granularity(self.page)
    }

    fn key(&self, (): &()) {}

    fn register(&self, memory: &Memory, access: Access) -> Result<()> {
        // In a child, a thread that exists only in the parent may hold the lock.
        if !self.fork_guard.is_current() {
            return Err(Error::Forked);
        }
        let span = memory.require_host(|| self.name())?;
        let whole = span.pages(self.page);
        // Held across the system calls, so that the count and the kernel's state change together.
        // No lock of the cache is held here.
        let mut locked = self.locked.lock().ignore_poison();
        // Locks pages that are locked already too, so that the kernel reports every hole.
        if let Err(source) = lock(whole) {
            let gaps = locked.gaps(whole);
            // The kernel has locked everything up to the first hole, so unlocking may end there
            // too. The pages of other registrations stay locked.
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

    fn deregister(&self, memory: &Memory, (): ()) -> Result<()> {
        if !self.fork_guard.is_current() {
            return Ok(());
        }
        let span = memory.require_host(|| self.name())?;
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
