//! Tests of rings over a simulated device.

mod byte_source;
mod cancelled;
mod faults;
mod files;
mod futures;
mod moved_bytes;
