//! The memory of a segment on a GPU.

use std::fmt;

use crate::segment::{BLOCK_UNIT, SegmentGeometry};

/// The memory of a segment on a GPU, as its producer states it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GpuTerms {
    /// The UUID of the GPU.
    uuid: [u8; 16],
    /// The size of the memory: that of all blocks, rounded up to the granularity of the GPU.
    bytes: u64,
}

impl GpuTerms {
    /// Makes the terms of `bytes` bytes on the GPU with this UUID, for blocks of this geometry.
    /// Returns `None` for a size that such memory cannot have.
    pub(crate) fn new(uuid: [u8; 16], bytes: u64, geometry: SegmentGeometry) -> Option<GpuTerms> {
        let fits = bytes >= geometry.data_bytes() && bytes.is_multiple_of(BLOCK_UNIT);
        (fits && i64::try_from(bytes).is_ok()).then_some(GpuTerms { uuid, bytes })
    }

    /// Returns the UUID of the GPU.
    #[cfg(feature = "cuda")]
    pub(crate) fn uuid(self) -> [u8; 16] {
        self.uuid
    }

    /// Returns the size of the memory in bytes.
    pub(crate) fn bytes(self) -> u64 {
        self.bytes
    }

    /// Returns the numbers of the memory, all 0 for a segment without any.
    pub(super) fn to_numbers(terms: Option<GpuTerms>) -> [u64; 3] {
        let Some(GpuTerms { uuid, bytes }) = terms else { return [0; 3] };
        let bits = u128::from_le_bytes(uuid);
        [bytes, bits as u64, (bits >> 64) as u64]
    }

    /// Returns the memory with these numbers, which is none for zeros.
    ///
    /// # Errors
    /// `()` for numbers that stand for nothing.
    pub(super) fn from_numbers(numbers: [u64; 3], geometry: SegmentGeometry) -> Result<Option<GpuTerms>, ()> {
        let [bytes, low, high] = numbers;
        if numbers == [0; 3] {
            return Ok(None);
        }
        let uuid = (u128::from(high) << 64 | u128::from(low)).to_le_bytes();
        GpuTerms::new(uuid, bytes, geometry).map(Some).ok_or(())
    }
}

impl fmt::Display for GpuTerms {
    /// Prints the UUID of the GPU as nvidia-smi does: `GPU-0123abcd-...`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GPU")?;
        for (at, byte) in self.uuid.iter().enumerate() {
            let hyphen = if matches!(at, 0 | 4 | 6 | 8 | 10) { "-" } else { "" };
            write!(f, "{hyphen}{byte:02x}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_restore_the_memory_and_others_are_refused() {
        let geometry = SegmentGeometry::new(4096, 4, 1).unwrap();
        let uuid = std::array::from_fn(|at| at as u8 * 17);
        let terms = GpuTerms::new(uuid, 2 << 20, geometry).unwrap();
        assert_eq!(terms.to_string(), "GPU-00112233-4455-6677-8899-aabbccddeeff");
        let numbers = GpuTerms::to_numbers(Some(terms));
        assert_eq!(GpuTerms::from_numbers(numbers, geometry), Ok(Some(terms)));
        assert_eq!(GpuTerms::from_numbers([0; 3], geometry), Ok(None));
        for bytes in [0, 1, 4096, 16383, 16385, 1 << 63, u64::MAX] {
            assert_eq!(GpuTerms::from_numbers([bytes, 7, 7], geometry), Err(()), "{bytes}");
        }
    }
}
