//! A registration of this process in the [ledger](crate::segment::ledger).

use std::sync::Arc;

use crate::segment::ledger::{Holder, Ledger};
use crate::segment::mapped_segment::MappedSegment;
use hostbuf_os::fork_guard::ForkGuard;
use hostbuf_os::process;
use hostbuf_register::Access;

/// A row of this process. Dropping it clears the row, except in a forked child: the row belongs to
/// the parent.
pub(crate) struct Listed {
    segment: Arc<MappedSegment>,
    row: usize,
    holder: Holder,
    fork_guard: ForkGuard,
}

impl Listed {
    /// Lists a registration of this process. Returns `None` if the table is full, which is counted.
    pub(crate) fn enter(
        segment: Arc<MappedSegment>,
        index: usize,
        (offset, length): (u64, u64),
        access: Access,
        device: &str,
    ) -> Option<Listed> {
        let pid = std::process::id();
        let start = process::start_time(pid as i32).unwrap_or(0);
        let holder = Holder::new(pid, start);
        let row = Ledger::new(segment.control()).enter(holder, index, (offset, length), access, device)?;
        Some(Listed { segment, row, holder: holder.completed(), fork_guard: ForkGuard::current() })
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        if self.fork_guard.is_current() {
            Ledger::new(self.segment.control()).clear(self.row, self.holder);
        }
    }
}

#[cfg(test)]
#[allow(unsafe_code, reason = "the test forks")]
mod tests {
    use super::*;
    use nix::sys::wait::{WaitStatus, waitpid};
    use nix::unistd::{ForkResult, fork};

    #[test]
    fn a_forked_child_leaves_the_rows_of_its_parent() {
        let buffer = crate::HostBuffer::allocate(&crate::job::Solo, crate::BufferOptions::new(4096)).unwrap();
        let rows = || Ledger::new(buffer.control()).registrations().len();
        let listed = Listed::enter(buffer.segment.clone(), 0, (0, 4096), Access::READ, "x").unwrap();
        // SAFETY: the child drops one value and ends.
        match unsafe { fork() }.unwrap() {
            ForkResult::Child => {
                drop(listed);
                // SAFETY: runs no exit handler of the parent.
                unsafe { libc::_exit(0) }
            }
            ForkResult::Parent { child } => {
                assert!(matches!(waitpid(child, None), Ok(WaitStatus::Exited(_, 0))));
            }
        }
        assert_eq!(rows(), 1);
        drop(listed);
        assert_eq!(rows(), 0);
    }
}
