use std::fmt;

use super::invalid_layout::InvalidLayout;

/// Bytes that are no header of the block that they are read for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum InvalidHeader {
    /// The bytes do not begin as a header does, such as those of a block that was never published.
    NoHeader,
    /// The header has this version of the format, which this build does not read.
    OtherVersion(u8),
    /// The hash is wrong: some of the bytes have changed.
    Damaged,
    /// The byte at this offset has no meaning in this version of the format, and is not 0.
    Reserved(usize),
    /// The header is that of another generation of the block: the producer has reused it.
    #[non_exhaustive]
    OtherGeneration {
        /// The generation that the header states.
        found: u64,
        /// The generation that the reader asked for.
        expected: u64,
    },
    /// The content is longer than the block.
    #[non_exhaustive]
    TooLong {
        /// The length that the header states, in bytes.
        length: u64,
        /// The size of the block in bytes.
        block_size: u64,
    },
    /// The array is invalid, or ends behind the content.
    InvalidLayout(InvalidLayout),
}

impl From<InvalidLayout> for InvalidHeader {
    fn from(layout: InvalidLayout) -> InvalidHeader {
        InvalidHeader::InvalidLayout(layout)
    }
}

impl fmt::Display for InvalidHeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            InvalidHeader::NoHeader => f.write_str("the block has no header: nothing was published in it"),
            InvalidHeader::OtherVersion(version) => write!(
                f,
                "the header has version {version} of the format, and this hostbuf reads {}: use one version of \
                 hostbuf",
                super::FORMAT_VERSION
            ),
            InvalidHeader::Damaged => f.write_str("the header is damaged: its hash is wrong"),
            InvalidHeader::Reserved(offset) => {
                write!(f, "the header is invalid: its byte {offset} is reserved, and is not 0")
            }
            InvalidHeader::OtherGeneration { found, expected } => write!(
                f,
                "the header describes generation {found} of the block, and the token names generation {expected}: the \
                 producer has reused the block"
            ),
            InvalidHeader::TooLong { length, block_size } => {
                write!(
                    f,
                    "the header states a content of {length} bytes, and the block has {block_size} bytes"
                )
            }
            InvalidHeader::InvalidLayout(layout) => {
                write!(f, "the header describes an invalid array: {layout}")
            }
        }
    }
}

impl std::error::Error for InvalidHeader {}
