//! One buffer per host, at one address on every host of a job, shared by all its ranks.
//!
//! An MPI program in which each of 128 ranks of a node holds a private copy of a read-only table wastes 127
//! copies. With hostbuf there is one copy a node, and since it stands at the same address in every rank of every
//! node, it may be full of raw pointers: built once, sent to the other nodes as bytes, never rebuilt.
//!
//! | concept | type | what it is |
//! | --- | --- | --- |
//! | buffer | [`HostBuffer`] | a host's shared memory, mapped at the agreed address |
//! | what to ask for | [`Options`], [`Pages`] | size, pages, lazy, name |
//! | who takes part | [`job::Collective`] | [`job::Solo`], [`job::Local`], `job::Mpi` (feature `mpi`) |
//! | what may live inside | [`Portable`], [`Arena`], [`List`], [`Map`] | objects whose pointers stay inside |
//! | after filling | [`Frozen`] | nobody can write any more, and the kernel is the proof |
//! | devices | [`register`] | registrations, and a cache of them |
//! | what went wrong | [`Error`] | a variant for each operation, with operands |
//!
//! Under `hostbuf run` or `mpirun ... hostbuf exec` the buffer is there before `main`, and
//! [`HostBuffer::attach`] finds it. Without a launcher, [`HostBuffer::allocate`] makes one collectively:
//!
//! ```
//! use hostbuf::{HostBuffer, List, Options, job::Solo};
//!
//! let buffer = HostBuffer::allocate(&Solo, Options::new(16 << 20))?;
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

pub(crate) mod buffer;
pub mod error;
pub mod job;
/// What the launcher uses. No promise is made about it.
#[doc(hidden)]
pub mod os {
    pub use hostbuf_memory::memfd;
    pub use hostbuf_os::*;
}
#[cfg(feature = "rdma")]
#[path = "../crates/hostbuf-rdma/src/lib.rs"]
pub mod rdma;
mod registration;
mod span {
    pub(crate) use hostbuf_register::{Access, Span};
}
#[doc(hidden)]
pub use hostbuf_protocol::wire;

pub use buffer::{
    Arena, Fill, Frozen, HostBuffer, List, Map, Options, Pages, Phase, Placed, Portable, Proof,
};
pub use error::{Error, Failure, Result};
pub use hostbuf_memory::{Error as MemoryError, NoSpace};
pub use hostbuf_os::Bytes;
pub use hostbuf_register as register;
pub use hostbuf_register::{Access, Span};

/// What the launcher and the other languages need beside the library's interface. No promise is made about it.
#[doc(hidden)]
pub mod internal {
    pub use crate::buffer::agreement::{self, Electorate, Outcome, elect};
    pub use crate::buffer::ballot::{self, Holds};
    pub use crate::buffer::candidates::{self, Ballot};
    pub use crate::buffer::control::{BufferIdentity, Control, Identity};
    pub use crate::buffer::foreign;
    pub use crate::buffer::layout;
    pub use crate::buffer::ledger::{Registered, new_image};
    pub use crate::buffer::options::check_all;
    pub use crate::buffer::segment::{CONTROL_NAME, ControlPage, Segments};
    pub use crate::wire;
    pub use hostbuf_memory::populate::Workers;
    pub use hostbuf_memory::space;
    pub use hostbuf_os::{Channel, Message};
}
