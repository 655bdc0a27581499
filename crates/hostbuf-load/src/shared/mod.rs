//! The parts of a load that lie in the buffer, for all ranks of a host.
//!
//! ```text
//! | board: claims, counters, a word for each window | table of tensors | files ... |  root |
//! ```

mod load_board;
mod load_memory;
mod load_root;
mod loaded_region;

pub(crate) use load_board::{LoadBoard, add_time};
pub(crate) use load_memory::LoadMemory;
pub(crate) use load_root::LoadRoot;
pub(crate) use loaded_region::LoadedRegion;
