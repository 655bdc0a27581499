//! Whether this is still the process that made something, or a forked child of it. A load and a
//! compare: `getpid` is a system call, too slow for where this is asked.

#![allow(unsafe_code)]

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// The number of a process in the line of its forks: each child's is greater than its parent's.
#[derive(Clone, Copy, Debug)]
pub struct Lineage {
    number: u64,
    word: &'static AtomicU64,
}

impl PartialEq for Lineage {
    fn eq(&self, other: &Lineage) -> bool {
        self.number == other.number
    }
}

/// The words of one process: in a page that the kernel gives to a child zeroed.
struct Page(*const AtomicU64);

// SAFETY: an atomic that is never unmapped.
unsafe impl Send for Page {}
// SAFETY: as above.
unsafe impl Sync for Page {}

static PAGE: OnceLock<Page> = OnceLock::new();
/// The last number that a process of this line has taken; a child begins with its parent's.
static LAST: AtomicU64 = AtomicU64::new(0);

fn word() -> &'static AtomicU64 {
    let page = PAGE.get_or_init(|| {
        let length = crate::memory::page_size() as usize;
        // SAFETY: a new anonymous page.
        let at = unsafe {
            let (rw, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
            libc::mmap(std::ptr::null_mut(), length, rw, flags, -1, 0)
        };
        // SAFETY: the page just made. Linux before 4.14 has no such advice.
        let wiped =
            at != libc::MAP_FAILED && unsafe { libc::madvise(at, length, libc::MADV_WIPEONFORK) } == 0;
        if wiped { Page(at.cast()) } else { Page(std::ptr::null()) }
    });
    static NONE: AtomicU64 = AtomicU64::new(0);
    // SAFETY: mapped for good and aligned; or null.
    unsafe { page.0.as_ref() }.unwrap_or(&NONE)
}

impl Lineage {
    /// This process.
    #[must_use]
    pub fn here() -> Lineage {
        let word = word();
        let number = word.load(Ordering::Relaxed);
        if number != 0 {
            return Lineage { number, word };
        }
        let fresh = LAST.fetch_add(1, Ordering::Relaxed) + 1;
        // Threads of one process agree on who came first.
        match word.compare_exchange(0, fresh, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => Lineage { number: fresh, word },
            Err(number) => Lineage { number, word },
        }
    }

    /// Whether this is the process that asked [`here`](Lineage::here).
    #[must_use]
    #[inline]
    pub fn is_here(self) -> bool {
        self.word.load(Ordering::Relaxed) == self.number
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::wait::{WaitStatus, waitpid};
    use nix::unistd::{ForkResult, fork};

    #[test]
    fn a_child_is_not_its_parent_and_a_grandchild_neither() {
        let own = Lineage::here();
        assert!(own.is_here());
        // SAFETY: the children only compute and end.
        let child = unsafe { fork() }.unwrap();
        let ForkResult::Parent { child } = child else {
            let stranger = !own.is_here();
            let here = Lineage::here();
            // SAFETY: as above.
            let well = stranger
                && here.is_here()
                && here != own
                && match unsafe { fork() } {
                    Ok(ForkResult::Child) => {
                        let well = !own.is_here() && !here.is_here();
                        // SAFETY: runs nothing of the parent's.
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
        assert!(own.is_here());
    }
}
