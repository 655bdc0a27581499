//! One-sided operations of a host on the other hosts' parts of a buffer.

pub(crate) mod fabric;
pub(crate) mod fabric_state;
pub(crate) mod offset;
pub(crate) mod operations;
pub(crate) mod signal;
pub(crate) mod signal_counters;
