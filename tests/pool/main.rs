//! Pools: blocks between processes, and the broker.

mod deaths;
