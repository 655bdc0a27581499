//! Reads and writes by io_uring.
//!
//! Each thread has an io_uring of its own. A read of a piece is several operations that are
//! submitted and awaited together, so the depth at the disk is the number of threads times the
//! number of parts. The threads of a ring read into its slots as fixed buffers.

mod fixed_buffers;
mod io_queue;
mod piece_parts;
mod setup_refusal;
mod thread_queue;
mod uring_file;

pub(crate) use thread_queue::with_slot_memory;
pub(super) use uring_file::{UringFile, probe};
