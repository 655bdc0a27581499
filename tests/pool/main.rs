//! Pools: blocks between processes and containers, and the broker.

mod contained_process;
mod containers;
mod deaths;
mod gpu_blocks;
