//! Tests of rings over a simulated device.

mod allocation_count;
mod batches;
mod bounds;
mod byte_source;
mod cache_budget;
mod cancelled;
mod child_process;
mod counted_ring_memory;
mod disk_file;
mod error_places;
mod faults;
mod files;
mod forked_child;
mod forks;
mod freezing;
mod futures;
mod held_call;
mod host_memory;
mod lost_devices;
mod mapped;
mod memory_file;
mod moved_bytes;
mod polled_device;
mod reordered_copies;
mod row_copies;
mod shared_rings;
mod short_reads;
mod slot_costs;
mod span_log;
mod spans;
mod streams;
mod system_calls;
mod uring;
mod uring_limits;

pub(crate) use disk_file::DiskFile;
pub(crate) use span_log::SpanLog;
