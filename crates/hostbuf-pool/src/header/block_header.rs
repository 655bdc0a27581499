//! Headers: the descriptions of published blocks.
//!
//! A header is 256 bytes. All numbers are little-endian, those of the strides in two's complement.
//! Bytes that are reserved are 0.
//!
//! | offset | bytes | content |
//! | --- | --- | --- |
//! | 0 | 3 | the letters `hbh` |
//! | 3 | 1 | the version of the format, 1 |
//! | 4 | 1 | the type code of an element in DLPack |
//! | 5 | 1 | the number of bits of an element |
//! | 6 | 2 | the number of lanes of an element, 1 |
//! | 8 | 1 | the number of dimensions, at most 8 |
//! | 9 | 1 | flags; bit 0: there is a time of capture |
//! | 10 | 6 | reserved |
//! | 16 | 8 | the generation of the block |
//! | 24 | 8 | the length of the content in bytes |
//! | 32 | 8 | the sequence number |
//! | 40 | 8 | the time of publication, CLOCK_MONOTONIC in nanoseconds |
//! | 48 | 8 | the time of capture in nanoseconds, or 0 if there is none |
//! | 56 | 8 | the frame number of the producer |
//! | 64 | 8 × 8 | the extents of the dimensions in elements; 0 behind the last dimension |
//! | 128 | 8 × 8 | the strides of the dimensions in bytes; 0 behind the last dimension |
//! | 192 | 48 | the user data |
//! | 240 | 8 | reserved |
//! | 248 | 8 | the XXH3 hash of the 248 bytes before, of 64 bits |
//!
//! The array starts at the first byte of the block, and ends within the content.

use xxhash_rust::xxh3::xxh3_64;

use super::array_layout::ArrayLayout;
use super::element_type::ElementType;
use super::invalid_header::InvalidHeader;
use super::invalid_layout::InvalidLayout;
use super::{FORMAT_VERSION, MAX_DIMENSIONS};

const MAGIC: [u8; 3] = *b"hbh";
/// The flag of a header with a time of capture.
const CAPTURED: u8 = 1;

/// The offsets of the parts, as the table above lists them.
mod offset {
    pub(super) const VERSION: usize = 3;
    pub(super) const CODE: usize = 4;
    pub(super) const BITS: usize = 5;
    pub(super) const LANES: usize = 6;
    pub(super) const DIMENSIONS: usize = 8;
    pub(super) const FLAGS: usize = 9;
    pub(super) const RESERVED: usize = 10;
    pub(super) const GENERATION: usize = 16;
    pub(super) const LENGTH: usize = 24;
    pub(super) const SEQUENCE: usize = 32;
    pub(super) const PUBLISHED: usize = 40;
    pub(super) const CAPTURED: usize = 48;
    pub(super) const FRAME: usize = 56;
    pub(super) const SHAPE: usize = 64;
    pub(super) const STRIDES: usize = 128;
    pub(super) const USER_DATA: usize = 192;
    pub(super) const RESERVED_END: usize = 240;
    pub(super) const HASH: usize = 248;
}

/// The description of the content of a published block.
///
/// A producer fills in the fields and encodes them. A reader decodes a copy of the bytes.
///
/// ```
/// use hostbuf_pool::{ArrayLayout, BlockHeader, ElementType};
///
/// let mut header = BlockHeader::new(ArrayLayout::contiguous(ElementType::UInt8, &[1080, 1920, 4])?);
/// header.generation = 3;
/// header.sequence = 41;
/// let bytes = header.encode();
///
/// let block_size = 8 << 20;
/// assert_eq!(BlockHeader::decode(&bytes, block_size, 3)?, header);
/// assert!(BlockHeader::decode(&bytes, block_size, 4).is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct BlockHeader {
    /// The layout of the array that starts the block. Bytes without a meaning for others are an
    /// array of [`ElementType::Opaque`].
    pub layout: ArrayLayout,
    /// The length of the content in bytes. The content may continue behind the array.
    pub length: u64,
    /// The generation of the block: the number of times that it was taken before.
    pub generation: u64,
    /// The number of blocks that the producer published before this one. A gap between two headers
    /// is the number of blocks that a reader has missed.
    pub sequence: u64,
    /// The time of publication in nanoseconds, by CLOCK_MONOTONIC. Processes of one host compare
    /// it, unless they are in different time namespaces.
    pub published_ns: u64,
    /// The time of capture in nanoseconds, if the producer gave one. Producer and consumers agree
    /// on the clock: CLOCK_REALTIME, or that of a camera.
    pub captured_ns: Option<u64>,
    /// The number that the producer gives the frame, such as that of a camera. Nothing interprets
    /// it.
    pub frame: u64,
    /// The bytes that the producer adds. Nothing interprets them.
    pub user_data: [u8; BlockHeader::USER_DATA_SIZE],
}

impl BlockHeader {
    /// The size of an encoded header in bytes.
    pub const SIZE: usize = 256;
    /// The size of the user data in bytes.
    pub const USER_DATA_SIZE: usize = 48;

    /// Returns the header of a content that ends with its array. The other fields are 0, and there
    /// is no time of capture.
    #[must_use]
    pub const fn new(layout: ArrayLayout) -> BlockHeader {
        BlockHeader {
            layout,
            length: layout.extent_bytes(),
            generation: 0,
            sequence: 0,
            published_ns: 0,
            captured_ns: None,
            frame: 0,
            user_data: [0; BlockHeader::USER_DATA_SIZE],
        }
    }

    /// Checks that the array lies within the content, and the content within a block of
    /// `block_size` bytes. A producer calls this before it publishes, since readers refuse other
    /// headers.
    ///
    /// # Errors
    /// [`InvalidHeader::TooLong`], or [`InvalidHeader::InvalidLayout`] with
    /// [`InvalidLayout::OutOfBounds`](crate::InvalidLayout::OutOfBounds).
    pub fn check_bounds(&self, block_size: u64) -> Result<(), InvalidHeader> {
        if self.length > block_size {
            return Err(InvalidHeader::TooLong { length: self.length, block_size });
        }
        Ok(self.layout.check_bounds(self.length)?)
    }

    /// Encodes the header.
    #[must_use]
    pub fn encode(&self) -> [u8; BlockHeader::SIZE] {
        let mut bytes = [0; BlockHeader::SIZE];
        let (code, bits, lanes) = self.layout.element().dlpack();
        put(&mut bytes, 0, MAGIC);
        put(&mut bytes, offset::VERSION, [FORMAT_VERSION]);
        put(&mut bytes, offset::CODE, [code]);
        put(&mut bytes, offset::BITS, [bits]);
        put(&mut bytes, offset::LANES, lanes.to_le_bytes());
        put(&mut bytes, offset::DIMENSIONS, [self.layout.shape().len() as u8]);
        put(&mut bytes, offset::FLAGS, [if self.captured_ns.is_some() { CAPTURED } else { 0 }]);
        put(&mut bytes, offset::GENERATION, self.generation.to_le_bytes());
        put(&mut bytes, offset::LENGTH, self.length.to_le_bytes());
        put(&mut bytes, offset::SEQUENCE, self.sequence.to_le_bytes());
        put(&mut bytes, offset::PUBLISHED, self.published_ns.to_le_bytes());
        put(&mut bytes, offset::CAPTURED, self.captured_ns.unwrap_or(0).to_le_bytes());
        put(&mut bytes, offset::FRAME, self.frame.to_le_bytes());
        for (dimension, extent) in self.layout.shape().iter().enumerate() {
            put(&mut bytes, offset::SHAPE + 8 * dimension, extent.to_le_bytes());
        }
        for (dimension, stride) in self.layout.strides().iter().enumerate() {
            put(&mut bytes, offset::STRIDES + 8 * dimension, stride.to_le_bytes());
        }
        put(&mut bytes, offset::USER_DATA, self.user_data);
        let hash = hash(&bytes);
        put(&mut bytes, offset::HASH, hash);
        bytes
    }

    /// Decodes the header of generation `generation` of a block of `block_size` bytes. Both numbers
    /// come by message, from the broker and in the token.
    ///
    /// `bytes` must be a private copy. Bytes in shared memory could change between a check and the
    /// use of a number.
    ///
    /// The hash finds headers that were damaged or copied while they changed. It does not
    /// authenticate them, so each number is checked even if it is right.
    ///
    /// # Errors
    /// [`InvalidHeader`].
    pub fn decode(
        bytes: &[u8; BlockHeader::SIZE],
        block_size: u64,
        generation: u64,
    ) -> Result<BlockHeader, InvalidHeader> {
        if !bytes.starts_with(&MAGIC) {
            return Err(InvalidHeader::NoHeader);
        }
        let version = bytes[offset::VERSION];
        if version != FORMAT_VERSION {
            return Err(InvalidHeader::OtherVersion(version));
        }
        if part(bytes, offset::HASH) != hash(bytes) {
            return Err(InvalidHeader::Damaged);
        }
        let found = number(bytes, offset::GENERATION);
        if found != generation {
            return Err(InvalidHeader::OtherGeneration { found, expected: generation });
        }
        let header = BlockHeader {
            layout: decode_layout(bytes)?,
            length: number(bytes, offset::LENGTH),
            generation,
            sequence: number(bytes, offset::SEQUENCE),
            published_ns: number(bytes, offset::PUBLISHED),
            captured_ns: decode_captured(bytes)?,
            frame: number(bytes, offset::FRAME),
            user_data: part(bytes, offset::USER_DATA),
        };
        check_zero(bytes, offset::RESERVED, offset::GENERATION)?;
        check_zero(bytes, offset::RESERVED_END, offset::HASH)?;
        header.check_bounds(block_size)?;
        Ok(header)
    }
}

fn decode_layout(bytes: &[u8; BlockHeader::SIZE]) -> Result<ArrayLayout, InvalidHeader> {
    let (code, bits) = (bytes[offset::CODE], bytes[offset::BITS]);
    let lanes = u16::from_le_bytes(part(bytes, offset::LANES));
    let element = ElementType::from_dlpack(code, bits, lanes).ok_or(InvalidLayout::UnknownElement {
        code,
        bits,
        lanes,
    })?;
    let dimensions = usize::from(bytes[offset::DIMENSIONS]);
    if dimensions > MAX_DIMENSIONS {
        return Err(InvalidLayout::TooManyDimensions(dimensions).into());
    }
    let shape: [u64; MAX_DIMENSIONS] = std::array::from_fn(|at| number(bytes, offset::SHAPE + 8 * at));
    let strides: [i64; MAX_DIMENSIONS] =
        std::array::from_fn(|at| number(bytes, offset::STRIDES + 8 * at).cast_signed());
    check_zero(bytes, offset::SHAPE + 8 * dimensions, offset::STRIDES)?;
    check_zero(bytes, offset::STRIDES + 8 * dimensions, offset::USER_DATA)?;
    Ok(ArrayLayout::new(element, &shape[..dimensions], &strides[..dimensions])?)
}

fn decode_captured(bytes: &[u8; BlockHeader::SIZE]) -> Result<Option<u64>, InvalidHeader> {
    match bytes[offset::FLAGS] {
        0 => {
            check_zero(bytes, offset::CAPTURED, offset::FRAME)?;
            Ok(None)
        }
        CAPTURED => Ok(Some(number(bytes, offset::CAPTURED))),
        _ => Err(InvalidHeader::Reserved(offset::FLAGS)),
    }
}

/// Checks that the bytes from `start` to `end` are 0, so that a later version may use them.
fn check_zero(bytes: &[u8; BlockHeader::SIZE], start: usize, end: usize) -> Result<(), InvalidHeader> {
    match bytes[start..end].iter().position(|byte| *byte != 0) {
        Some(at) => Err(InvalidHeader::Reserved(start + at)),
        None => Ok(()),
    }
}

fn put<const N: usize>(bytes: &mut [u8; BlockHeader::SIZE], at: usize, part: [u8; N]) {
    bytes[at..at + N].copy_from_slice(&part);
}

fn part<const N: usize>(bytes: &[u8; BlockHeader::SIZE], at: usize) -> [u8; N] {
    bytes[at..at + N].try_into().expect("all fields lie within the header")
}

fn number(bytes: &[u8; BlockHeader::SIZE], at: usize) -> u64 {
    u64::from_le_bytes(part(bytes, at))
}

fn hash(bytes: &[u8; BlockHeader::SIZE]) -> [u8; BlockHeader::SIZE - offset::HASH] {
    xxh3_64(&bytes[..offset::HASH]).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::super::array_layout::tests::array_layouts;
    use super::*;
    use proptest::prelude::*;
    use std::ops::Range;

    fn headers() -> impl Strategy<Value = BlockHeader> {
        let numbers = any::<(u64, u64, u64, Option<u64>, u64)>();
        (array_layouts(), 0..1000u64, numbers, prop::array::uniform::<_, 48>(any::<u8>())).prop_map(
            |(layout, behind, (generation, sequence, published_ns, captured_ns, frame), user_data)| {
                BlockHeader {
                    length: layout.extent_bytes() + behind,
                    generation,
                    sequence,
                    published_ns,
                    captured_ns,
                    frame,
                    user_data,
                    layout,
                }
            },
        )
    }

    /// Returns the header with `part` at offset `at` and a hash that matches, as a hostile producer
    /// makes it.
    fn forged(header: &BlockHeader, at: usize, part: &[u8]) -> [u8; BlockHeader::SIZE] {
        let mut bytes = header.encode();
        bytes[at..at + part.len()].copy_from_slice(part);
        let hash = hash(&bytes);
        put(&mut bytes, offset::HASH, hash);
        bytes
    }

    fn image() -> BlockHeader {
        let layout = ArrayLayout::new(ElementType::UInt16, &[3, 5], &[16, 2]).unwrap();
        BlockHeader { generation: 7, ..BlockHeader::new(layout) }
    }

    proptest! {
        #[test]
        fn a_header_survives_its_bytes(header in headers(), more in 0..100u64) {
            let decoded = BlockHeader::decode(&header.encode(), header.length + more, header.generation);
            prop_assert_eq!(decoded, Ok(header));
        }

        #[test]
        fn every_flipped_byte_is_noticed(header in headers(), flip in 1..=u8::MAX) {
            for at in 0..BlockHeader::SIZE {
                let mut bytes = header.encode();
                bytes[at] ^= flip;
                let expected = match at {
                    0..3 => InvalidHeader::NoHeader,
                    3 => InvalidHeader::OtherVersion(bytes[3]),
                    _ => InvalidHeader::Damaged,
                };
                prop_assert_eq!(BlockHeader::decode(&bytes, u64::MAX, header.generation), Err(expected));
            }
        }

        #[test]
        fn content_beyond_the_block_is_refused(header in headers(), missing in 1..100u64) {
            if let Some(block_size) = header.length.checked_sub(missing) {
                let expected = InvalidHeader::TooLong { length: header.length, block_size };
                prop_assert_eq!(BlockHeader::decode(&header.encode(), block_size, header.generation), Err(expected));
                prop_assert_eq!(header.check_bounds(block_size), Err(expected));
            }
        }

        #[test]
        fn another_generation_is_refused(header in headers(), expected in any::<u64>()) {
            prop_assume!(expected != header.generation);
            let other = InvalidHeader::OtherGeneration { found: header.generation, expected };
            prop_assert_eq!(BlockHeader::decode(&header.encode(), header.length, expected), Err(other));
        }

        /// A hash that matches proves nothing, so the numbers themselves must be checked.
        #[test]
        fn forged_headers_reach_no_byte_behind_the_block(
            header in headers(),
            changes in prop::collection::vec((4..offset::HASH, any::<u8>()), 1..6),
            block_size in 0..4096u64,
        ) {
            let mut bytes = header.encode();
            for (at, value) in changes {
                bytes[at] = value;
            }
            let hash = hash(&bytes);
            put(&mut bytes, offset::HASH, hash);
            let generation = number(&bytes, offset::GENERATION);
            if let Ok(decoded) = BlockHeader::decode(&bytes, block_size, generation) {
                prop_assert!(decoded.length <= block_size);
                prop_assert!(decoded.layout.extent_bytes() <= decoded.length);
                prop_assert_eq!(BlockHeader::decode(&decoded.encode(), block_size, generation), Ok(decoded));
            }
        }
    }

    /// The format is documented for other programs, so it must not change by accident.
    #[test]
    fn the_format_is_that_of_the_documentation() {
        let shape = [0x11, 0x12, 0x13, 1, 1, 1, 1, 0x18];
        let layout = ArrayLayout::contiguous(ElementType::Complex128, &shape).unwrap();
        let header = BlockHeader {
            layout,
            length: 0x2726_2524_2322_2120,
            generation: 0x3736_3534_3332_3130,
            sequence: 0x4746_4544_4342_4140,
            published_ns: 0x5756_5554_5352_5150,
            captured_ns: Some(0x6766_6564_6362_6160),
            frame: 0x7776_7574_7372_7170,
            user_data: std::array::from_fn(|at| 0x80 + at as u8),
        };
        let bytes = header.encode();
        assert_eq!(bytes[..16], *b"hbh\x01\x05\x80\x01\x00\x08\x01\0\0\0\0\0\0");
        let is_counted = |range: Range<usize>, first: u8| {
            bytes[range].iter().zip(first..).all(|(byte, expected)| *byte == expected)
        };
        assert!(is_counted(16..24, 0x30), "generation");
        assert!(is_counted(24..32, 0x20), "length");
        assert!(is_counted(32..40, 0x40), "sequence");
        assert!(is_counted(40..48, 0x50), "published");
        assert!(is_counted(48..56, 0x60), "captured");
        assert!(is_counted(56..64, 0x70), "frame");
        for (dimension, extent) in shape.into_iter().enumerate() {
            assert_eq!(bytes[64 + 8 * dimension..][..8], extent.to_le_bytes());
        }
        let strides = [0x12 * 0x13 * 0x18 * 16, 0x13 * 0x18 * 16, 0x180i64, 0x180, 0x180, 0x180, 0x180, 16];
        for (dimension, stride) in strides.into_iter().enumerate() {
            assert_eq!(bytes[128 + 8 * dimension..][..8], stride.to_le_bytes());
        }
        assert!(is_counted(192..240, 0x80), "user data");
        assert_eq!(bytes[240..248], [0; 8]);
        assert_eq!(bytes[248..], xxh3_64(&bytes[..248]).to_le_bytes());
    }

    #[test]
    fn blocks_that_were_never_published_have_no_header() {
        assert_eq!(BlockHeader::decode(&[0; 256], 4096, 0), Err(InvalidHeader::NoHeader));
    }

    #[test]
    fn an_array_behind_the_content_is_refused() {
        let header = BlockHeader { length: 41, ..image() };
        let expected = InvalidLayout::OutOfBounds { extent: 42, available: 41 };
        assert_eq!(BlockHeader::decode(&header.encode(), 4096, 7), Err(expected.into()));
        assert_eq!(header.check_bounds(4096), Err(expected.into()));
    }

    #[test]
    fn forged_layouts_are_refused() {
        let error = |at, part: &[u8]| BlockHeader::decode(&forged(&image(), at, part), 4096, 7).unwrap_err();
        let layout = |at, part: &[u8]| match error(at, part) {
            InvalidHeader::InvalidLayout(layout) => layout,
            other => panic!("{other}"),
        };
        let vector = InvalidLayout::UnknownElement { code: 1, bits: 16, lanes: 4 };
        assert_eq!(layout(offset::LANES, &[4, 0]), vector);
        assert_eq!(layout(offset::DIMENSIONS, &[9]), InvalidLayout::TooManyDimensions(9));
        assert_eq!(layout(offset::DIMENSIONS, &[255]), InvalidLayout::TooManyDimensions(255));
        let negative = InvalidLayout::NegativeStride { dimension: 0, stride: -2 };
        assert_eq!(layout(offset::STRIDES, &(-2i64).to_le_bytes()), negative);
        let broadcast = InvalidLayout::Overlap { dimension: 0, stride: 0, smallest: 2 };
        assert_eq!(layout(offset::STRIDES, &[0; 8]), broadcast);
        assert_eq!(layout(offset::SHAPE, &[0xff; 8]), InvalidLayout::Overflow);
        let long = InvalidLayout::OutOfBounds { extent: 58, available: 42 };
        assert_eq!(layout(offset::SHAPE, &[4]), long);
    }

    #[test]
    fn bytes_without_a_meaning_are_zero() {
        // The bytes behind the last dimension, and the time of a header without one, are reserved.
        for at in [10, 15, 48, 55, 80, 127, 144, 191, 240, 247] {
            let decoded = BlockHeader::decode(&forged(&image(), at, &[1]), 4096, 7);
            assert_eq!(decoded, Err(InvalidHeader::Reserved(at)));
        }
        let decoded = BlockHeader::decode(&forged(&image(), offset::FLAGS, &[2]), 4096, 7);
        assert_eq!(decoded, Err(InvalidHeader::Reserved(offset::FLAGS)));
    }

    #[test]
    fn a_time_of_capture_may_be_zero() {
        let header = BlockHeader { captured_ns: Some(0), ..image() };
        assert_eq!(BlockHeader::decode(&header.encode(), 4096, 7), Ok(header));
        assert_ne!(header.encode(), image().encode());
    }
}
