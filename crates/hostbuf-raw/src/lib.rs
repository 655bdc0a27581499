//! System calls by inline assembly, and a parser of `/proc/self/maps`, for code that runs before
//! `main`.
//!
//! The crate depends only on `core` and references no symbol of a C library. The preloaded object
//! of hostbuf is built from it.

#![cfg_attr(not(test), no_std)]

pub mod maps;
pub mod syscall;

pub use syscall::Errno;

/// Compiles and runs the examples of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
