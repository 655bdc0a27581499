//! The parts of unfinished collective operations among the members of a host.

use std::collections::BTreeMap;

/// The identification of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct GatherKey {
    /// The number of ranks on the host, which differs between worlds.
    pub(super) local_size: u64,
    /// The generation of the members.
    pub(super) generation: u64,
    /// The group.
    pub(super) group: u64,
    /// The number of the operation in its group.
    pub(super) sequence: u64,
}

/// The parts of unfinished operations by local rank, each with the number of the peer that sent it.
pub(super) type Gathers = BTreeMap<GatherKey, BTreeMap<u64, (u64, Vec<u8>)>>;
