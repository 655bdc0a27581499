//! Rings: slots of registered memory, and the threads that fill and empty them.

mod borrowed_memory;
mod copy_steps;
mod device_wait;
mod free_slots;
#[cfg(feature = "cuda")]
mod gpu_streams;
mod held_transfers;
mod host_memory;
mod host_pieces;
mod leased_memory;
mod piece_steps;
mod ring_core;
mod ring_error;
mod ring_life;
mod ring_options;
mod ring_slot;
mod ring_streams;
mod shared_rings;
mod short_read;
mod staging_ring;
mod stream_transfers;
mod transfer_queue;
mod work_signal;
mod worker;

pub use borrowed_memory::BorrowedMemory;
pub use host_memory::HostMemory;
pub use hostbuf_register::RingMemory;
pub use ring_error::RingError;
pub use ring_options::{InvalidRing, RingOptions};
pub use staging_ring::Ring;
