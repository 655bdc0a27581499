//! The protocol between a job's ranks and the agent of their host: [frames](wire), [candidates] for
//! the agreed address, and [holds](ballot) of them.
//!
//! The crate depends only on `core`: the library, the agent and the preloaded object contain the
//! same code.

#![cfg_attr(not(test), no_std)]

pub mod ballot;
pub mod candidates;
pub mod wire;
