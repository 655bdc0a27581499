//! Shared memory files: the size of their pages, the check for free memory, and the allocation of
//! their pages.
//!
//! A [memory file](memfd) is sealed against shrinking and growing, so no reader gets SIGBUS. The
//! [space check](space) compares a request with the host's available memory, the pools of huge
//! pages and every memory cgroup, and allocates no page. [Populating](populate) allocates all pages
//! at once with several workers.

mod anonymous;
#[cfg(test)]
mod call_filter;
mod create;
mod demand;
mod demand_part;
pub mod error;
mod mapping;
pub mod memfd;
mod node_copy;
mod pages;
pub mod placement;
pub mod populate;
mod private_memory;
mod resolve;
mod seals;
pub mod space;

pub use anonymous::AnonymousSegment;
pub use create::{CreatedFile, create_all, create_without_pools, creation_error, has_chosen_pools};
pub use demand::Demand;
pub use demand_part::DemandPart;
pub use error::{Error, NoSpace, Result};
pub use mapping::{FileMapping, MappingRefused};
pub use node_copy::{CopiedFile, NodeCopy};
pub use pages::Pages;
pub use private_memory::PrivateMemory;
pub use resolve::resolve_all;
pub use seals::Seals;

/// Compiles and runs the examples of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
