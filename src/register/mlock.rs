//! Plain page-locking: the registrar that every machine has.

#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::io;
use std::sync::{Mutex, PoisonError};

use crate::error::{Error, Result};
use crate::os::{memlock, memory};
use crate::register::registrar::{Overlap, Probe, Registrar};
use crate::span::{Access, Span};

/// Locks pages into memory by `mlock(2)`. The kernel counts no locks: one munlock unlocks a page however often it was
/// locked. So pages are counted here, and each is unlocked with its last registration.
///
/// The system call is made directly: address sanitizers put a function that does nothing in the place of the C library's.
#[derive(Debug)]
pub struct Mlock {
    page: usize,
    /// For each locked page, how many registrations have it.
    pages: Mutex<BTreeMap<usize, usize>>,
}

impl Default for Mlock {
    fn default() -> Mlock {
        Mlock::new()
    }
}

impl Mlock {
    /// One for this process. Two of them would unlock each other's pages.
    #[must_use]
    pub fn new() -> Mlock {
        Mlock { page: memory::page_size() as usize, pages: Mutex::new(BTreeMap::new()) }
    }

    /// Whether this process may lock memory, and how much.
    #[must_use]
    pub fn probe() -> Probe {
        match memlock::limit() {
            Some(0) => Probe::Missing("the limit of locked memory is 0; raise `ulimit -l`".into()),
            Some(limit) => Probe::Ready(format!("{} may be locked (ulimit -l)", crate::Bytes(limit))),
            None => Probe::Ready("memory may be locked without limit".into()),
        }
    }

    fn failed(&self, span: Span, access: Access, doing: &str) -> Error {
        let source = io::Error::last_os_error();
        let why = match source.raw_os_error() {
            Some(libc::ENOMEM | libc::EAGAIN) => {
                format!(
                    "{doing}: not all of it is mapped, or it is above the limit of locked memory (`ulimit -l`)"
                )
            }
            _ => doing.to_owned(),
        };
        Error::Registration { device: self.name(), span, access, why, source: Some(source) }
    }

    /// The pages of `span` that nobody else has, as runs.
    fn alone(pages: &BTreeMap<usize, usize>, span: Span, page: usize, mine: usize) -> Vec<Span> {
        let mut runs: Vec<Span> = Vec::new();
        for at in (span.start()..span.end()).step_by(page) {
            if pages.get(&at).copied().unwrap_or(0) != mine {
                continue;
            }
            let joined = runs.last().filter(|run| run.end() == at);
            let run = joined.map_or((at, page), |run| (run.start(), run.len() + page));
            if joined.is_some() {
                runs.pop();
            }
            runs.extend(Span::new(run.0, run.1));
        }
        runs
    }
}

impl Registrar for Mlock {
    type Handle = ();

    fn name(&self) -> String {
        "mlock".into()
    }

    fn overlap(&self) -> Overlap {
        Overlap::Free
    }

    fn footprint(&self, span: Span) -> usize {
        span.pages(self.page).len()
    }

    fn register(&self, span: Span, access: Access) -> Result<()> {
        let whole = span.pages(self.page);
        // Held across the system calls: the count and the kernel's state change together. Nothing of the cache waits here.
        let mut pages = self.pages.lock().unwrap_or_else(PoisonError::into_inner);
        // All of it, so that a hole shows even where every page beside it is locked already.
        // SAFETY: locking changes no content; a range that is not mapped is an error.
        if unsafe { libc::syscall(libc::SYS_mlock, whole.start(), whole.len()) } != 0 {
            let error = self.failed(span, access, "mlock");
            for run in Mlock::alone(&pages, whole, self.page, 0) {
                // SAFETY: as above; pages that others have stay locked.
                unsafe { libc::syscall(libc::SYS_munlock, run.start(), run.len()) };
            }
            return Err(error);
        }
        for at in (whole.start()..whole.end()).step_by(self.page) {
            *pages.entry(at).or_default() += 1;
        }
        Ok(())
    }

    fn deregister(&self, span: Span, (): ()) -> Result<()> {
        let whole = span.pages(self.page);
        let mut pages = self.pages.lock().unwrap_or_else(PoisonError::into_inner);
        let last = Mlock::alone(&pages, whole, self.page, 1);
        for at in (whole.start()..whole.end()).step_by(self.page) {
            match pages.get_mut(&at) {
                Some(count) if *count > 1 => *count -= 1,
                _ => drop(pages.remove(&at)),
            }
        }
        let mut result = Ok(());
        for run in last {
            // SAFETY: unlocking changes no content.
            let unlocked = unsafe { libc::syscall(libc::SYS_munlock, run.start(), run.len()) } == 0;
            // What has been unmapped is unlocked by that.
            if !unlocked && nix::errno::Errno::last_raw() != libc::ENOMEM {
                result = Err(self.failed(span, Access::READ, "munlock"));
            }
        }
        result
    }
}
