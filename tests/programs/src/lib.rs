//! The parts that the programs in tests/programs and the tests share.

#![allow(missing_docs, reason = "this crate is not published")]
#![allow(unsafe_code, reason = "the programs change mappings and end processes")]

pub mod checks;
pub mod memory;
pub mod registered;
pub mod tcp;
