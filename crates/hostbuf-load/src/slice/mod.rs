//! The parts of tensors that ranks take.

mod fused_part;
mod slice_error;
mod strided_part;
mod tensor_slice;
#[cfg(test)]
mod tests;

pub use fused_part::FusedPart;
pub use slice_error::SliceError;
pub use strided_part::StridedPart;
pub use tensor_slice::TensorSlice;
