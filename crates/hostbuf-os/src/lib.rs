//! System calls: the ground floor. Nothing here knows what a host buffer is.

pub mod array;
pub mod cores;
pub mod descriptors;
pub mod forking;
pub mod kernel;
pub mod lineage;
pub mod mapping_query;
#[path = "../../hostbuf-raw/src/maps.rs"]
pub mod maps;
#[path = "../../hostbuf-memory/src/memfd.rs"]
pub mod memfd;
pub mod memlock;
pub mod memory;
pub mod process;
#[path = "../../hostbuf-raw/src/syscall.rs"]
pub mod raw;
pub mod socket;
pub mod thread;
