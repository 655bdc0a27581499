//! Shared memory files: how large their pages are, whether there is room for them, and how their
//! pages are taken.
//!
//! A [memory file](memfd) is sealed against shrinking and growing, so no reader meets SIGBUS. The
//! [space check](space) compares a request with the host's available memory, the pools of huge
//! pages and every memory cgroup, and touches no page. [Populating](populate) takes all pages at
//! once with several workers.

mod anonymous;
pub mod error;
mod mapping;
pub mod memfd;
mod pages;
pub mod populate;
pub mod space;

pub use anonymous::AnonymousSegment;
pub use error::{Error, NoSpace, Result};
pub use pages::Pages;
