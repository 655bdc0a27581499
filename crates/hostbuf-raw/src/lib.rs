//! System calls by instruction, and a parser of `/proc/self/maps`, for code that runs before
//! `main`.
//!
//! The crate needs nothing but `core` and references no symbol of a C library. hostbuf's preloaded
//! object is built from it.

#![cfg_attr(not(test), no_std)]

pub mod maps;
pub mod syscall;

pub use syscall::Errno;
