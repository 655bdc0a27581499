//! One buffer per host, at one address on every host of a job, shared by all its ranks.
//!
//! An MPI program in which each of 128 ranks of a node holds a private copy of a read-only table
//! wastes 127 copies. With hostbuf there is one copy a node, and since it stands at the same
//! address in every rank of every node, it may be full of raw pointers: built once, sent to the
//! other nodes as bytes, never rebuilt.
//!
//! | concept | type | what it is |
//! | --- | --- | --- |
//! | buffer | [`HostBuffer`] | a host's shared memory, mapped at the agreed address |
//! | what to ask for | [`BufferOptions`], [`Pages`] | size, pages, lazy, name |
//! | who takes part | [`job::Collective`] | [`job::Solo`], [`job::Local`], `job::Mpi` (feature `mpi`) |
//! | what may live inside | [`Portable`], [`Arena`], [`List`], [`Map`] | objects whose pointers stay inside |
//! | after filling | [`Frozen`] | nobody can write any more, and the kernel is the proof |
//! | devices | [`register`] | registrations, and a cache of them |
//! | what went wrong | [`Error`] | a variant for each operation, with operands |
//!
//! Under `hostbuf run` or `mpirun ... hostbuf exec` the buffer is there before `main`, and
//! [`HostBuffer::attach`] finds it. Without a launcher, [`HostBuffer::allocate`] makes one
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
mod fill;
mod freeze;
pub mod job;
mod preregistered;
mod registration;
mod replicate;
pub mod segment;

pub use error::{AttachError, Error, Failure, Result};
pub use fill::arena::{Arena, Placed};
pub use fill::arena_id::ArenaId;
pub use fill::containers::{List, Map};
pub use fill::ffi;
pub use fill::portable::Portable;
pub use freeze::{Frozen, Proof};
pub use hostbuf_memory::{Error as MemoryError, NoSpace, Pages};
pub use hostbuf_os::Bytes;
pub use hostbuf_register as register;
pub use hostbuf_register::{Access, Span};
pub use segment::fill_state::FillState;
pub use segment::handle::HostBuffer;
pub use segment::identity::Phase;
pub use segment::options::BufferOptions;
