//! Tensors that move from their files to a device through a ring, and are kept nowhere else.

mod tensor_transfer;
#[cfg(test)]
mod tests;

pub use tensor_transfer::{TensorTransfer, load_through};
