//! Files of tensors that are loaded into a buffer before the ranks have it: `--load` without
//! `--as-files`.

mod load_failure;
mod loaded_tensors;

pub use load_failure::load_failure;
pub(crate) use loaded_tensors::LoadedTensors;
