//! Claims to things of which a process has one, whichever copy of the library uses it: the monitor,
//! and the filler's lock of a buffer.
//!
//! They are in a page that the kernel zeroes in a forked child: the child has neither the monitor's
//! thread nor the record locks of its parent.

#![allow(unsafe_code, reason = "reads the page of claims, which all copies share")]

use std::fmt;
use std::ptr::NonNull;
use std::sync::atomic::Ordering;

use super::claims_page::{CLAIMS, ClaimEntry};
use super::copy_name::CopyName;
use super::joined::anchor;
use super::note;
use super::table::CopyTable;

/// The key of the monitor.
pub const MONITOR: u64 = 1;

/// Returns the key of the filler's lock of buffer `index` with the control page at `address`.
#[must_use]
pub fn filler(address: usize, index: usize) -> u64 {
    // The page's address is a multiple of 4096.
    (address + index) as u64
}

/// A claim, until it is dropped. In a forked child dropping its parent's claim does nothing.
#[derive(Debug)]
pub struct ProcessClaim {
    number: u64,
}

/// The holder of a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClaimHolder {
    /// The copy of the library.
    pub copy: CopyName,
    /// True if the calling thread made the claim.
    pub is_own_thread: bool,
}

/// The reason why a claim was not granted.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ClaimRefusal {
    /// Another claim with the same key exists.
    Held(ClaimHolder),
    /// This copy has not [joined](super::join) the others.
    NotJoined,
    /// Too many claims exist.
    Full,
}

impl fmt::Display for ClaimRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ClaimRefusal::Held(holder) => write!(f, "{} has claimed it", holder.copy),
            ClaimRefusal::NotJoined => f.write_str("this copy of the library does not know the others"),
            ClaimRefusal::Full => write!(f, "the process has {CLAIMS} claims already"),
        }
    }
}

/// Claims `key` for this copy, unless a copy of the library in this process has claimed it.
///
/// # Errors
/// The holder, or the reason why no claim can be made.
pub fn claim(key: u64) -> Result<ProcessClaim, ClaimRefusal> {
    let (anchor, page) =
        anchor().and_then(|anchor| Some((anchor, anchor.claims()?))).ok_or(ClaimRefusal::NotJoined)?;
    // SAFETY: has no preconditions.
    let thread = unsafe { libc::syscall(libc::SYS_gettid) } as u64;
    let _lock = page.lock.lock();
    let is_taken = |entry: &ClaimEntry| entry.number.load(Ordering::Relaxed) != 0;
    if let Some(entry) = page.entry(|entry| is_taken(entry) && entry.key.load(Ordering::Relaxed) == key) {
        let holder = NonNull::new(entry.holder.load(Ordering::Relaxed).cast::<CopyTable>());
        // SAFETY: the table of a copy that has joined, which stays loaded.
        let copy = holder.map(|holder| unsafe { holder.as_ref() }.name());
        let copy = copy.unwrap_or(CopyName { path: "unknown".into(), version: "unknown".into() });
        let is_own_thread = entry.thread.load(Ordering::Relaxed) == thread;
        return Err(ClaimRefusal::Held(ClaimHolder { copy, is_own_thread }));
    }
    let entry = page.entry(|entry| !is_taken(entry)).ok_or(ClaimRefusal::Full)?;
    // Numbers are never used again, so a child that drops its parent's claim ends none of its own.
    let number = anchor.last_claim.fetch_add(1, Ordering::Relaxed) + 1;
    entry.key.store(key, Ordering::Relaxed);
    entry.holder.store(std::ptr::from_ref(note::own()).cast_mut().cast(), Ordering::Relaxed);
    entry.thread.store(thread, Ordering::Relaxed);
    entry.number.store(number, Ordering::Relaxed);
    Ok(ProcessClaim { number })
}

impl Drop for ProcessClaim {
    fn drop(&mut self) {
        let Some(page) = anchor().and_then(CopyTable::claims) else { return };
        let _lock = page.lock.lock();
        if let Some(entry) = page.entry(|entry| entry.number.load(Ordering::Relaxed) == self.number) {
            entry.number.store(0, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::wait::{WaitStatus, waitpid};
    use nix::unistd::{ForkResult, fork};

    /// A key that no other test uses.
    const KEY: u64 = 1 << 62;

    #[test]
    fn one_claim_of_a_key_exists_and_a_child_has_none() {
        crate::copies::join(std::ptr::null()).unwrap();
        let first = claim(KEY).unwrap();
        let refused = claim(KEY).unwrap_err();
        assert!(matches!(&refused, ClaimRefusal::Held(holder) if holder.is_own_thread), "{refused:?}");
        let other = std::thread::spawn(|| claim(KEY).map(drop)).join().unwrap();
        assert!(matches!(&other, Err(ClaimRefusal::Held(holder)) if !holder.is_own_thread), "{other:?}");
        // SAFETY: the child only claims and ends.
        let ForkResult::Parent { child } = (unsafe { fork() }).unwrap() else {
            let own = claim(KEY);
            drop(first);
            let well = own.is_ok() && claim(KEY).is_err();
            // SAFETY: runs no exit handler of the parent.
            unsafe { libc::_exit(i32::from(!well)) }
        };
        assert!(matches!(waitpid(child, None), Ok(WaitStatus::Exited(_, 0))));
        assert!(claim(KEY).is_err());
        drop(first);
        claim(KEY).unwrap();
    }

    #[test]
    fn threads_that_claim_at_once_exclude_each_other() {
        crate::copies::join(std::ptr::null()).unwrap();
        let holders = std::sync::atomic::AtomicUsize::new(0);
        let granted = std::sync::atomic::AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..2000 {
                        if let Ok(claim) = claim(KEY + 1) {
                            assert_eq!(holders.fetch_add(1, Ordering::SeqCst), 0);
                            granted.fetch_add(1, Ordering::Relaxed);
                            std::thread::yield_now();
                            holders.fetch_sub(1, Ordering::SeqCst);
                            drop(claim);
                        }
                    }
                });
            }
        });
        assert!(granted.into_inner() > 0);
    }

    #[test]
    fn too_many_claims_are_refused() {
        crate::copies::join(std::ptr::null()).unwrap();
        let claims: Vec<ProcessClaim> =
            (0..CLAIMS as u64).map_while(|n| claim(KEY + 1000 + n).ok()).collect();
        assert_eq!(claim(KEY + 999).unwrap_err(), ClaimRefusal::Full);
        drop(claims);
        claim(KEY + 999).unwrap();
    }
}
