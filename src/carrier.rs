//! Carriers, which move a buffer's bytes between hosts instead of the group's collective
//! operations.

use std::sync::{Arc, Mutex, MutexGuard, Weak};

use hostbuf_os::poison::IgnorePoison;

use crate::error::Result;
use crate::job::HostIndex;
use hostbuf_os::forking::hold_around_fork;

/// The hosts that a carrier joins, and the buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
// Exhaustive: a carrier of another crate states all of them.
pub struct JoinedHosts {
    /// The address of the buffer.
    pub start: usize,
    /// The number of hosts.
    pub count: usize,
    /// The index of this host.
    pub own: HostIndex,
}

/// A transport of bytes between the hosts' parts of one buffer. The leader of each host has one.
pub trait Carrier: Send + Sync {
    /// Returns the buffer and the hosts that the carrier joins.
    fn joins(&self) -> JoinedHosts;

    /// Returns a number that is the same on all joined hosts, and differs from those of other
    /// carriers.
    fn number(&self) -> u64;

    /// Returns whether the carrier works: it does not for a frozen buffer, whose registration has
    /// ended.
    fn is_ready(&self) -> bool;

    /// Prepares for [`carry`](Carrier::carry): bytes that arrive from now on belong to it. All
    /// hosts prepare before one begins.
    fn prepare(&self) -> u64;

    /// Moves the first `bytes` bytes from host `source` to all others. `each` is called with the
    /// offset and the length of each part that has arrived here. `prepared` is the value that
    /// [`prepare`](Carrier::prepare) returned.
    ///
    /// # Errors
    /// A host that cannot be reached fails, and so do all hosts to which it would have sent.
    fn carry(
        &self,
        prepared: u64,
        source: HostIndex,
        bytes: usize,
        each: &mut dyn FnMut(usize, usize),
    ) -> Result<()>;
}

/// The carriers that are offered.
type Carriers = Vec<Weak<dyn Carrier>>;

static CARRIERS: Mutex<Carriers> = Mutex::new(Vec::new());

fn carriers() -> MutexGuard<'static, Carriers> {
    hold_around_fork!(CARRIERS: Carriers);
    CARRIERS.lock().ignore_poison()
}

/// Offers a carrier to [`HostBuffer::replicate`](crate::HostBuffer::replicate), for as long as it
/// lives.
pub fn offer(carrier: &Arc<dyn Carrier>) {
    let mut carriers = carriers();
    carriers.retain(|other| other.strong_count() > 0);
    carriers.push(Arc::downgrade(carrier));
}

/// Withdraws an offer.
pub fn withdraw(carrier: &Arc<dyn Carrier>) {
    let mut carriers = carriers();
    carriers.retain(|other| !std::ptr::addr_eq(other.as_ptr(), Arc::as_ptr(carrier)));
}

/// Returns the carrier that was offered last for this buffer and these hosts, if one is ready.
pub(crate) fn find(joined: JoinedHosts) -> Option<Arc<dyn Carrier>> {
    // Without the lock: the drop of a carrier's last handle withdraws its offer.
    let offered: Vec<_> = carriers().iter().rev().filter_map(Weak::upgrade).collect();
    offered.into_iter().find(|carrier| carrier.joins() == joined && carrier.is_ready())
}

#[cfg(test)]
mod tests {
    #![allow(unsafe_code, reason = "fork")]

    use super::*;
    use nix::sys::wait::{WaitStatus, waitpid};
    use nix::unistd::{ForkResult, fork};
    use std::sync::atomic::{AtomicBool, Ordering};

    const ALONE: JoinedHosts = JoinedHosts { start: 1, count: 1, own: HostIndex(0) };

    struct Idle;

    impl Carrier for Idle {
        fn joins(&self) -> JoinedHosts {
            ALONE
        }

        fn number(&self) -> u64 {
            1
        }

        fn is_ready(&self) -> bool {
            true
        }

        fn prepare(&self) -> u64 {
            0
        }

        fn carry(&self, _: u64, _: HostIndex, _: usize, _: &mut dyn FnMut(usize, usize)) -> Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_child_finds_carriers_while_threads_of_its_parent_change_the_list() {
        let kept: Arc<dyn Carrier> = Arc::new(Idle);
        offer(&kept);
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let other: Arc<dyn Carrier> = Arc::new(Idle);
                while !stop.load(Ordering::Relaxed) {
                    offer(&other);
                    withdraw(&other);
                }
            });
            let mut well = 0;
            for _ in 0..500 {
                // SAFETY: the child looks a carrier up, and ends.
                match unsafe { fork() }.unwrap() {
                    // SAFETY: as above; the alarm ends a child that hangs.
                    ForkResult::Child => unsafe {
                        libc::alarm(20);
                        libc::_exit(i32::from(find(ALONE).is_none()))
                    },
                    ForkResult::Parent { child } => {
                        let ended = waitpid(child, None);
                        well += i32::from(matches!(ended, Ok(WaitStatus::Exited(_, 0))));
                        if !matches!(ended, Ok(WaitStatus::Exited(_, 0))) {
                            break;
                        }
                    }
                }
            }
            stop.store(true, Ordering::Relaxed);
            assert_eq!(well, 500);
        });
    }
}
