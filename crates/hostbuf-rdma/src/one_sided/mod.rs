//! One-sided operations of a host on the other hosts' parts of a buffer.

pub(crate) mod fabric;
pub(crate) mod operations;
