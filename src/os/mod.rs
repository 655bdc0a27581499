//! System calls: the ground floor. Nothing here knows what a host buffer is.

pub mod cores;
pub mod lineage;
pub mod maps;
pub mod memfd;
pub mod memory;
pub mod process;
pub mod raw;
pub mod socket;
