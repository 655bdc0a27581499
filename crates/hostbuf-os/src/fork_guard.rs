//! Detection of forks: tells a process from its forked children by a load and a comparison.
//! `getpid` is a system call, and would be too slow for the callers.

#![allow(unsafe_code, reason = "reads a page that the kernel zeroes in a child")]

use std::sync::atomic::{AtomicU64, Ordering};

use crate::set_once::SetOnce;

/// The identity of a process among its ancestors and children: a child's number is greater than its
/// parent's.
#[derive(Clone, Copy, Debug)]
pub struct ForkGuard {
    number: u64,
    word: &'static AtomicU64,
}

impl PartialEq for ForkGuard {
    fn eq(&self, other: &ForkGuard) -> bool {
        self.number == other.number
    }
}

/// The word of this process, in a page that the kernel zeroes in a child.
struct WipedPage(*const AtomicU64);

// SAFETY: an atomic that is never unmapped.
unsafe impl Send for WipedPage {}
// SAFETY: as above.
unsafe impl Sync for WipedPage {}

static PAGE: SetOnce<WipedPage> = SetOnce::new();
/// The last number that this process or an ancestor has taken. A child starts with its parent's.
static LAST: AtomicU64 = AtomicU64::new(0);

fn word() -> &'static AtomicU64 {
    let page = PAGE.get().unwrap_or_else(|| {
        let page = crate::wiped_page::wiped_page();
        // The page of a thread that comes second stays mapped.
        PAGE.set(WipedPage(page.map_or(std::ptr::null(), |page| page.as_ptr().cast())))
    });
    static NONE: AtomicU64 = AtomicU64::new(0);
    // SAFETY: null, or aligned and never unmapped.
    unsafe { page.0.as_ref() }.unwrap_or(&NONE)
}

impl ForkGuard {
    /// Returns the guard of this process.
    #[must_use]
    pub fn current() -> ForkGuard {
        let word = word();
        let number = word.load(Ordering::Relaxed);
        if number != 0 {
            return ForkGuard { number, word };
        }
        let fresh = LAST.fetch_add(1, Ordering::Relaxed) + 1;
        // All threads of a process use the number that was stored first.
        match word.compare_exchange(0, fresh, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => ForkGuard { number: fresh, word },
            Err(number) => ForkGuard { number, word },
        }
    }

    /// Returns whether this process is the one that called [`current`](ForkGuard::current).
    #[must_use]
    #[inline]
    pub fn is_current(self) -> bool {
        self.word.load(Ordering::Relaxed) == self.number
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::wait::{WaitStatus, waitpid};
    use nix::unistd::{ForkResult, fork};

    #[test]
    fn children_and_grandchildren_are_told_from_their_parent() {
        let own = ForkGuard::current();
        assert!(own.is_current());
        // SAFETY: the children only compute and end.
        let child = unsafe { fork() }.unwrap();
        let ForkResult::Parent { child } = child else {
            let stranger = !own.is_current();
            let own_child = ForkGuard::current();
            // SAFETY: as above.
            let well = stranger
                && own_child.is_current()
                && own_child != own
                && match unsafe { fork() } {
                    Ok(ForkResult::Child) => {
                        let well = !own.is_current() && !own_child.is_current();
                        // SAFETY: runs no exit handler of the parent.
                        unsafe { libc::_exit(i32::from(!well)) }
                    }
                    Ok(ForkResult::Parent { child }) => {
                        matches!(waitpid(child, None), Ok(WaitStatus::Exited(_, 0)))
                    }
                    Err(_) => false,
                };
            // SAFETY: as above.
            unsafe { libc::_exit(i32::from(!well)) }
        };
        assert!(matches!(waitpid(child, None), Ok(WaitStatus::Exited(_, 0))));
        assert!(own.is_current());
    }
}
