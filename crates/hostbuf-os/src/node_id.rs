//! The numbers of NUMA nodes.

use std::fmt;

/// The number of a NUMA node in the kernel. Numbers may have gaps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
// Exhaustive: a number, and nothing else.
pub struct NodeId(pub u32);

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
