//! Tensors that move from their files to a device through a ring, and are kept nowhere else.

mod slice_target;
mod tensor_transfer;
#[cfg(test)]
mod tests;

pub use slice_target::SliceTarget;
pub use tensor_transfer::{TensorTransfer, load_through};
