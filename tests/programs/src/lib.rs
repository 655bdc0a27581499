//! The parts that the programs in tests/programs and the tests share.

#![allow(missing_docs, reason = "this crate is not published")]

pub mod checks;
pub mod lstopo;
pub mod memory;
pub mod numa;
pub mod process_resources;
pub mod random;
pub mod registered;
pub mod slow_group;
pub mod tcp;
