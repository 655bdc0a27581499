//! hostbuf for other languages than Rust: what include/hostbuf.h declares.
//!
//! Every function answers with a status, and no panic goes beyond it; what went wrong is in a
//! message of the calling thread. Handles are boxed Rust values behind pointers that the caller
//! gives back.

#![allow(unsafe_code, non_camel_case_types)]

// In the order of the header.
mod status;

mod group;

mod arena;
mod buffer;

mod fill;

mod register;

mod cache;
