//! Peers, the processes that connect to each other.

use std::fmt;

use hostbuf::job::HostIndex;

/// The index of a process among those that connect to each other, from 0: its index in a
/// [`Bootstrap`](crate::Bootstrap), or its rank if the bootstrap is a group of ranks.
///
/// The number of processes has another type, so exchanging the two does not compile:
///
/// ```
/// # use hostbuf_rdma::{PeerId, TcpBootstrap};
/// # let join = |root, timeout| {
/// TcpBootstrap::join(PeerId(1), 2, root, timeout)
/// # };
/// ```
///
/// ```compile_fail
/// # use hostbuf_rdma::{PeerId, TcpBootstrap};
/// # let join = |root, timeout| {
/// TcpBootstrap::join(2, PeerId(1), root, timeout)
/// # };
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
// Exhaustive: a number, and nothing else.
pub struct PeerId(pub usize);

/// A host of a fabric is represented by one process, which has the same index.
impl From<HostIndex> for PeerId {
    fn from(host: HostIndex) -> PeerId {
        PeerId(host.0)
    }
}

impl fmt::Display for PeerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
