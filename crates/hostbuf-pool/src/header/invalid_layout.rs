use std::fmt;

use super::MAX_DIMENSIONS;

/// A layout that an array in a block cannot have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum InvalidLayout {
    /// No element type has these terms of DLPack.
    #[non_exhaustive]
    UnknownElement {
        /// The type code.
        code: u8,
        /// The bits of a lane.
        bits: u8,
        /// The number of lanes.
        lanes: u16,
    },
    /// The array has this number of dimensions, more than
    /// [`ArrayLayout::MAX_DIMENSIONS`](crate::ArrayLayout::MAX_DIMENSIONS).
    TooManyDimensions(usize),
    /// The shape and the strides have different numbers of dimensions.
    #[non_exhaustive]
    StrideCount {
        /// The number of dimensions of the shape.
        dimensions: usize,
        /// The number of strides.
        strides: usize,
    },
    /// A stride is negative, so elements would lie in front of the block.
    #[non_exhaustive]
    NegativeStride {
        /// The dimension, counted from 0.
        dimension: usize,
        /// Its stride in bytes.
        stride: i64,
    },
    /// A stride is no multiple of the size of an element.
    #[non_exhaustive]
    UnalignedStride {
        /// The dimension, counted from 0.
        dimension: usize,
        /// Its stride in bytes.
        stride: i64,
        /// The size of an element in bytes.
        element: u64,
    },
    /// A stride is smaller than the bytes that one step of the dimension spans, so elements would
    /// overlap. It is 0 for a dimension that is broadcast.
    #[non_exhaustive]
    Overlap {
        /// The dimension, counted from 0.
        dimension: usize,
        /// Its stride in bytes.
        stride: i64,
        /// The smallest stride that it can have, in bytes.
        smallest: u64,
    },
    /// The array spans more bytes than an `i64` counts.
    Overflow,
    /// The array reaches beyond the bytes that it may lie in.
    #[non_exhaustive]
    OutOfBounds {
        /// The number of bytes from the start of the block to the end of the array.
        extent: u64,
        /// The number of bytes that the array may lie in.
        available: u64,
    },
}

impl fmt::Display for InvalidLayout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            InvalidLayout::UnknownElement { code, bits, lanes } => write!(
                f,
                "unknown element type: code {code}, {bits} bits, {lanes} lanes in DLPack: use a vector's lanes as \
                 a dimension, or void8 for bytes without a meaning"
            ),
            InvalidLayout::TooManyDimensions(dimensions) => write!(
                f,
                "the array has {dimensions} dimensions, and a block describes at most {MAX_DIMENSIONS}: merge some"
            ),
            InvalidLayout::StrideCount { dimensions, strides } => {
                write!(
                    f,
                    "the shape has {dimensions} dimensions, and there are {strides} strides: give one for each"
                )
            }
            InvalidLayout::NegativeStride { dimension, stride } => write!(
                f,
                "dimension {dimension} has the negative stride {stride}, and the first element of an array starts \
                 its block: copy the array"
            ),
            InvalidLayout::UnalignedStride { dimension, stride, element } => write!(
                f,
                "dimension {dimension} has a stride of {stride} bytes, which is no multiple of an element's {element} \
                 bytes: copy the array"
            ),
            InvalidLayout::Overlap { dimension, stride, smallest } => write!(
                f,
                "elements overlap: dimension {dimension} has a stride of {stride} bytes, and one step of it spans \
                 {smallest} bytes: copy the array"
            ),
            InvalidLayout::Overflow => {
                write!(f, "the array spans more than {} bytes: use a smaller shape", i64::MAX)
            }
            InvalidLayout::OutOfBounds { extent, available } => write!(
                f,
                "the array ends at byte {extent}, and {available} bytes are available: use a larger block or a \
                 smaller shape"
            ),
        }
    }
}

impl std::error::Error for InvalidLayout {}
