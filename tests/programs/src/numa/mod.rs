//! The memory of NUMA nodes, for programs in the virtual machines of `scripts/numa-vm`: on which
//! node each page is, a node without free memory, and a cpuset without a node.
//!
//! It shares no code with hostbuf, whose results it checks.

pub mod bound_memory;
pub mod cpuset_cgroup;
pub mod file_pages;
pub mod fragmented_node;
pub mod page_nodes;
pub mod sys_node;
