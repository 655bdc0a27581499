//! Another way than the collective's for a buffer's bytes to go to the other hosts.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::error::Result;

/// Moves bytes between the hosts' parts of one buffer. Of each host the leader has one.
pub(crate) trait Carrier: Send + Sync {
    /// Where the buffer begins; how many hosts are joined, and which of them this is.
    fn joins(&self) -> (usize, usize, usize);

    /// What tells those who are joined from others who are: the same number on all hosts.
    fn number(&self) -> u64;

    /// Whether it can carry: not what is frozen, whose registration has ended.
    fn is_ready(&self) -> bool;

    /// Prepares for [`carry`](Carrier::carry): what comes from now on belongs to it. All hosts have done this before one begins.
    fn prepare(&self) -> u64;

    /// Brings the first `bytes` bytes from host `source` to all others. `each` hears how far they are here; what it returns is
    /// told to nobody else. `prepared`: what [`prepare`](Carrier::prepare) gave.
    ///
    /// # Errors
    /// Where a host cannot be reached, on it and on all that it would have sent to.
    fn carry(
        &self,
        prepared: u64,
        source: usize,
        bytes: usize,
        each: &mut dyn FnMut(usize, usize),
    ) -> Result<()>;
}

static CARRIERS: Mutex<Vec<Weak<dyn Carrier>>> = Mutex::new(Vec::new());

/// Lets a buffer be carried by it as long as it lives.
#[cfg(feature = "rdma")]
pub(crate) fn offer(carrier: &Arc<dyn Carrier>) {
    let mut carriers = CARRIERS.lock().unwrap_or_else(PoisonError::into_inner);
    carriers.retain(|other| other.strong_count() > 0);
    carriers.push(Arc::downgrade(carrier));
}

/// Takes an offer back.
#[cfg(feature = "rdma")]
pub(crate) fn withdraw(carrier: &Arc<dyn Carrier>) {
    let mut carriers = CARRIERS.lock().unwrap_or_else(PoisonError::into_inner);
    carriers.retain(|other| !std::ptr::addr_eq(other.as_ptr(), Arc::as_ptr(carrier)));
}

/// The last that was offered for the buffer at `start` that joins so many hosts, of which this is number `own`.
pub(crate) fn find(start: usize, hosts: usize, own: usize) -> Option<Arc<dyn Carrier>> {
    let carriers = CARRIERS.lock().unwrap_or_else(PoisonError::into_inner);
    carriers
        .iter()
        .rev()
        .filter_map(Weak::upgrade)
        .find(|carrier| carrier.joins() == (start, hosts, own) && carrier.is_ready())
}
