//! Adoption of shared memory that another library has mapped: a device address for each byte of an
//! array, without a copy and without a change of its producer.
//!
//! An array that zenoh, dora, PyTorch or Python's `multiprocessing` has received from another
//! process lies in a shared mapping of a memory file. [`adopt`](Adopter::adopt) finds the file,
//! maps it once more, registers this second mapping once, whole, with a device, and returns the
//! device address of the array's bytes in it. Both mappings show the same pages. The second one is
//! hostbuf's own, so the other library may unmap or move its mapping at any time: the registration
//! stays valid.
//!
//! ```
//! use std::sync::Arc;
//! use hostbuf_pool::adopt::{AdoptOptions, Adopter};
//! use hostbuf_register::{Access, Mlock, Span};
//! # use std::fs::File;
//! # let file = File::options().read(true).write(true).create_new(true)
//! #     .open(format!("/dev/shm/hostbuf-doc-{}", std::process::id()))?;
//! # std::fs::remove_file(format!("/dev/shm/hostbuf-doc-{}", std::process::id()))?;
//! # file.set_len(8192)?;
//! # let array = unsafe { memmap2::MmapMut::map_mut(&file)? };
//!
//! let adopter = Adopter::new(Arc::new(Mlock::new()), AdoptOptions::new().bytes(64 << 20))?;
//! // `array` lies in shared memory that another library has mapped.
//! let adopted = adopter.adopt(Span::of(&array[..])?, Access::READ)?;
//! assert_ne!(adopted.host_span().start(), array.as_ptr() as usize);
//! // ... a device reads it, by adopted.key() and adopted.offset() ...
//! drop(adopted);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # The right bytes
//!
//! Each call asks the kernel which file the address range shows, at which offset
//! ([`ProcessMaps`](hostbuf_os::mapping_query::ProcessMaps)), also if the file is registered
//! already. So an address that has come to show another file, or another part of it, gets the
//! registration of what it shows now. Each call also checks that the file has kept its pages: a
//! device goes on using the pages that were registered, while a file that was truncated, or in
//! which a hole was punched, gets new ones. Such a file is registered anew.
//!
//! The checks hold for the moment of the call. The caller keeps the array alive, and its file
//! untruncated, until the device has finished: the [`Adopted`] keeps the pages, but another library
//! could reuse them for its next message.
//!
//! # Limits
//!
//! - The memory is a shared mapping of a file in memory: tmpfs (`/dev/shm`), a memfd, hugetlbfs, or
//!   shared anonymous memory. Each other kind of memory has an error of its own
//!   ([`AdoptError`]); the caller then copies.
//! - A file is registered whole, so all of its pages are allocated and stay in memory. The byte
//!   budget ([`AdoptOptions::bytes`]) limits the sum.
//! - A file that all other mappings of this process have left stays registered until the budget
//!   needs its bytes; a file that has also lost its name is ended with the next registration.
//! - A file is opened and closed here, which ends POSIX record locks (`F_SETLK`) of this process on
//!   it, as `fcntl(2)` describes. Locks by `flock(2)` and open file description locks remain.
//! - An adopter belongs to the process that made it. In a forked child it returns
//!   [`AdoptError::Forked`].

mod adopted;
mod adopter;
mod error;
mod file_range;
mod memory_file;
mod options;
mod page_presence;
mod process_adopter;
mod second_mapping;
mod segment;
mod segment_table;
#[cfg(test)]
mod tests;

pub use crate::releases::Completion;
pub use adopted::Adopted;
pub use adopter::Adopter;
pub use error::AdoptError;
pub use options::AdoptOptions;
pub use process_adopter::{adopt, process_adopter};
