//! The protocol between a job's ranks and the agent of their host: [frames](frame), the
//! [messages](message) in them, [candidates] for the agreed address, [holds](ballot) of them, the
//! form of an [error](failure) between processes, the [table of contents](contents) of a job's
//! memory, and the [environment variables](environment) of a rank.
//!
//! The crate depends only on `core`: the library, the agent and the preloaded object contain the
//! same code.

#![cfg_attr(not(test), no_std)]

pub mod ballot;
pub mod candidates;
pub mod contents;
pub mod environment;
pub mod failure;
pub mod frame;
mod hello;
pub mod limits;
pub mod message;
mod message_kind;
pub mod range;

/// Compiles and runs the examples of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
