//! The placement of memory on NUMA nodes: the request, the plan that gives every page its node, and
//! the free memory of each node.

mod host_nodes;
mod interleave;
mod node_list;
mod node_shortage;
mod node_space;
pub(crate) mod plan;
mod request;

pub use host_nodes::HostNodes;
pub use interleave::Interleave;
pub use node_list::name_nodes;
pub use node_space::{NodeMemory, NodeSpace};
pub use plan::{FilePlan, PlannedRange};
pub use request::Placement;

/// The largest number of nodes in one placement.
pub const MAX_NODES: usize = 64;
