//! The CUDA driver, loaded at run time.
//!
//! `libcuda.so.1` is loaded by the first call of [`Driver::find`], and never before.

mod driver;

pub use driver::{Code, Driver};

/// Compiles and runs the examples of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
