//! The copies of this library in one process.
//!
//! A process may contain several linked instances of the library: a Rust program, libhostbuf.so,
//! the Python module and the registering object each have one, with its own statics. They find each
//! other by an ELF note (`note.rs`) that each contains. The first use of a copy *joins* it: the
//! copy becomes a part of a list that all copies read, and stays loaded until the process ends.
//!
//! The copy that the dynamic loader lists first is the *anchor*. Its table has what all copies
//! share: the list, and the [claims] to things of which a process has one.

pub mod claims;
mod claims_page;
mod copy_name;
mod joined;
mod note;
mod table;

pub use copy_name::CopyName;
pub use joined::{NotJoined, OtherCopy, incompatible, is_alone, join, others};
