//! The description of the content of published blocks: element type, shape, strides, times.
//!
//! The headers of a segment's blocks lie in a table in shared memory, which the producer writes and
//! readers map read-only. A reader trusts nothing in it: it copies the bytes of a header once,
//! decodes the copy, and checks each number against the size of the block and the generation, which
//! it has by message.

mod array_layout;
mod block_header;
mod element_type;
mod invalid_header;
mod invalid_layout;

pub use array_layout::ArrayLayout;
pub use block_header::BlockHeader;
pub use element_type::ElementType;
pub use invalid_header::InvalidHeader;
pub use invalid_layout::InvalidLayout;

/// The largest number of dimensions of an array in a block.
const MAX_DIMENSIONS: usize = 8;
/// The version of the format of headers.
const FORMAT_VERSION: u8 = 1;
