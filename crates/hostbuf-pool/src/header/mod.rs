//! The description of the content of published blocks: element type, shape, strides, times.

mod element_type;

pub use element_type::ElementType;
