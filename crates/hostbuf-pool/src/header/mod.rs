//! The description of the content of published blocks: element type, shape, strides, times.

mod array_layout;
mod element_type;
mod invalid_layout;

pub use array_layout::ArrayLayout;
pub use element_type::ElementType;
pub use invalid_layout::InvalidLayout;

/// The largest number of dimensions of an array in a block.
const MAX_DIMENSIONS: usize = 8;
