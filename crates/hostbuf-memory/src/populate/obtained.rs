//! The outcome of populating.

use hostbuf_os::NodeId;

/// The allocated pages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ObtainedPages {
    /// The number of bytes on huge pages.
    pub huge: u64,
    /// The bytes of each range of the plan on each node, as verified after allocating them. Empty
    /// for a range without a placement.
    pub on_nodes: Vec<Vec<(NodeId, u64)>>,
}
