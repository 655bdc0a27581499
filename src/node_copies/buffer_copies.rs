//! The copies of a buffer, as a process of one of its ranks knows them.

use std::sync::Mutex;

use hostbuf_os::NodeId;
use hostbuf_os::poison::IgnorePoison;

use super::rank_node::ReadNode;

/// The copies of a buffer. There are none before a freeze has made them.
#[derive(Debug, Default)]
pub(crate) struct BufferCopies(Mutex<Option<KnownCopies>>);

/// The nodes of the copies of a buffer.
#[derive(Clone, Debug)]
pub(crate) struct KnownCopies {
    /// The node from which this process reads.
    pub(crate) own: ReadNode,
    /// The nodes from which the ranks of this host read.
    pub(crate) nodes: Vec<NodeId>,
}

impl BufferCopies {
    /// Returns the copies, or `None` if there are none.
    pub(crate) fn get(&self) -> Option<KnownCopies> {
        self.0.lock().ignore_poison().clone()
    }

    /// Sets the copies, or that there are none.
    pub(super) fn set(&self, known: Option<KnownCopies>) {
        *self.0.lock().ignore_poison() = known;
    }
}
