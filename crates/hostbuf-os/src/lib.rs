//! The interface of hostbuf to the operating system: descriptors, sockets, sessions, limits,
//! processes, threads, and forks.
//!
//! This crate does not depend on buffers or registrations.

pub mod array;
mod bytes;
mod cgroup;
pub mod copies;
mod core_threads;
pub mod cores;
pub mod descriptors;
pub mod error;
pub mod file_mapping;
pub mod fork_guard;
pub mod forking;
mod frame_socket;
pub mod kernel;
pub mod mapping_query;
pub mod memlock;
pub mod memory;
pub mod mempolicy;
mod node_id;
pub mod node_memory;
pub mod non_temporal;
mod open_descriptors;
pub mod per_process;
pub mod poison;
pub mod printable;
mod private_fd;
pub mod process;
pub mod process_lock;
pub mod session;
pub mod set_once;
pub mod socket;
pub mod thread;
mod wiped_page;

pub use bytes::Bytes;
pub use core_threads::on_cores;
pub use error::Error;
pub use frame_socket::{FrameSocket, Packet, Received, encode};
pub use hostbuf_raw::{maps, syscall as raw};
pub use node_id::NodeId;
pub use open_descriptors::OpenDescriptors;
pub use private_fd::{ForkLock, PrivateFd};

/// Compiles and runs the examples of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
