//! Tests of rings over a simulated device.

mod batches;
mod bounds;
mod byte_source;
mod cancelled;
mod faults;
mod files;
mod freezing;
mod futures;
mod host_memory;
mod moved_bytes;
mod shared_rings;
