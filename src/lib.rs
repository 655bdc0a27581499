//! One buffer per host, at one address on every host of a job, shared by all ranks of the host.
//!
//! If each of the 128 ranks on a host holds a private copy of a read-only table, 127 copies are
//! wasted. With hostbuf there is one copy per host. Because it is mapped at the same address in
//! every rank of every host, it may contain raw pointers: it is built once, sent to the other hosts
//! as bytes, and used there as it is.
//!
//! | concept | type | description |
//! | --- | --- | --- |
//! | buffer | [`HostBuffer`] | a host's shared memory, mapped at the agreed address |
//! | request | [`BufferOptions`], [`Pages`] | size, pages, lazy, name |
//! | ranks | [`job::Collective`] | [`job::Solo`], [`job::Local`], `job::Mpi` (feature `mpi`) |
//! | contents | [`Portable`], [`Arena`], [`List`], [`Map`] | objects whose pointers stay inside |
//! | after filling | [`Frozen`] | a read-only buffer, with the kernel's proof |
//! | devices | [`register`] | registrations, and a cache of them |
//! | failure | [`Error`] | a variant for each operation, with operands |
//!
//! Under `hostbuf run` or `mpirun ... hostbuf exec` the buffer exists before `main`, and
//! [`HostBuffer::attach`] finds it. Without a launcher, [`HostBuffer::allocate`] creates one
//! collectively:
//!
//! ```
//! use hostbuf::{HostBuffer, List, BufferOptions, job::Solo};
//!
//! let buffer = HostBuffer::allocate(&Solo, BufferOptions::new(16 << 20))?;
//! let squares = buffer.initialize(|arena| {
//!     let mut list = List::new_in(arena);
//!     list.extend((0u64..1000).map(|n| n * n));
//!     arena.place(list)
//! })?;
//! assert_eq!(squares[31], 961);
//! let frozen = buffer.freeze(&Solo)?;
//! assert!(frozen.bytes().is_some());
//! # Ok::<(), hostbuf::Error>(())
//! ```

pub mod agree;
mod attach_error;
pub mod carrier;
pub mod error;
mod exclusive_region;
mod fill;
mod freeze;
#[cfg(feature = "cuda")]
pub mod gpu;
pub mod job;
mod node_copies;
mod preregistered;
mod proof;
mod registration;
mod replicate;
pub mod segment;
pub mod sized_struct;

pub use error::{AttachError, Error, Failure, Result};
pub use exclusive_region::ExclusiveRegion;
pub use fill::arena::{Arena, Placed};
pub use fill::arena_id::ArenaId;
pub use fill::containers::{List, Map};
pub use fill::ffi;
pub use fill::portable::Portable;
pub use freeze::Frozen;
#[cfg(feature = "cuda")]
pub use gpu::GpuSection;
pub use hostbuf_memory::placement::{Interleave, Placement};
pub use hostbuf_memory::{Error as MemoryError, NoSpace, Pages};
pub use hostbuf_os::{Bytes, NodeId};
pub use hostbuf_protocol::failure::ErrorClass;
pub use hostbuf_register as register;
pub use hostbuf_register::{Access, Span};
pub use job::JobError;
pub use node_copies::{RankNode, ReadNode};
pub use proof::Proof;
pub use segment::fill_state::FillState;
pub use segment::handle::HostBuffer;
pub use segment::options::BufferOptions;
pub use segment::phase::Phase;
pub use segment::section::Section;
