//! Pools: blocks between processes and containers, and the broker.

mod contained_process;
mod containers;
mod deaths;
mod device_readers;
mod gpu_blocks;
mod misuse;
mod system_calls;
