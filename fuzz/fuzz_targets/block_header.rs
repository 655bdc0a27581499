//! The header of a block that its producer has overwritten: no crash, and no array that reaches
//! beyond the block.

#![no_main]

use hostbuf_pool::{ArrayLayout, BlockHeader, ElementType};
use libfuzzer_sys::fuzz_target;
use xxhash_rust::xxh3::xxh3_64;

const HASH: usize = 248;
const GENERATION: u64 = 7;

/// Decodes a header. The array of an accepted one lies within the block, from its first element to
/// its last.
fn decode(bytes: &[u8; BlockHeader::SIZE], block_size: u64) {
    let Ok(header) = BlockHeader::decode(bytes, block_size, GENERATION) else { return };
    let layout = header.layout;
    assert!(header.length <= block_size && header.generation == GENERATION);
    let (size, extent) = (layout.element().size_bytes(), layout.extent_bytes());
    assert!(extent <= header.length);
    assert!(u128::from(layout.elements()) * u128::from(size) <= u128::from(extent));
    assert!(layout.strides().iter().all(|stride| *stride >= 0));
    // Wider numbers than those that the library computes with.
    if extent == 0 {
        assert!(layout.shape().contains(&0) && layout.elements() == 0);
    } else {
        let elements: u128 = layout.shape().iter().map(|extent| u128::from(*extent)).product();
        assert_eq!(elements, u128::from(layout.elements()));
        let steps = layout.shape().iter().map(|extent| u128::from(extent - 1));
        let last: u128 = steps.zip(layout.strides()).map(|(steps, stride)| steps * *stride as u128).sum();
        assert_eq!(last + u128::from(size), u128::from(extent));
    }
    let encoded = header.encode();
    assert_eq!(BlockHeader::decode(&encoded, block_size, GENERATION), Ok(header));
}

/// Returns a valid header that `changes`, pairs of an offset and a byte, have overwritten. Its hash
/// matches, since the input alone would hardly ever pass the check of it.
fn with_hash(changes: &[u8]) -> [u8; BlockHeader::SIZE] {
    let layout = ArrayLayout::contiguous(ElementType::UInt16, &[4, 3, 2]).expect("a small array");
    let mut header = BlockHeader::new(layout);
    header.generation = GENERATION;
    let mut bytes = header.encode();
    for change in changes.chunks_exact(2) {
        bytes[usize::from(change[0]) % HASH] = change[1];
    }
    let hash = xxh3_64(&bytes[..HASH]);
    bytes[HASH..].copy_from_slice(&hash.to_le_bytes());
    bytes
}

fuzz_target!(|data: &[u8]| {
    let Some((block_size, data)) = data.split_first_chunk() else { return };
    let block_size = u64::from_le_bytes(*block_size);
    if let Some(bytes) = data.first_chunk() {
        decode(bytes, block_size);
    }
    decode(&with_hash(data), block_size);
});
