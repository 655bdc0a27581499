//! The properties of a registrar.

use crate::error::{Error, Result};
use crate::span::Span;

/// A device's treatment of overlapping registrations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Overlap {
    /// Registrations may overlap, and each one is independent (RDMA verbs).
    Free,
    /// The device refuses a range that overlaps a registered one (CUDA).
    Refused,
}

/// The properties of a registrar, which are constant while it lives.
///
/// ```
/// use hostbuf_register::{Overlap, RegistrarProperties, Span};
///
/// let pages = RegistrarProperties::new(Overlap::Refused).granularity(4096).longest(1 << 36);
/// assert_eq!(pages.footprint(Span::new(4095, 2)?), 8192);
/// # Ok::<(), hostbuf_register::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RegistrarProperties {
    /// The device's treatment of overlapping registrations.
    pub overlap: Overlap,
    /// The number of bytes, a power of two, in whole multiples of which the device pins memory.
    pub granularity: usize,
    /// The number of bytes of the longest range that the device registers.
    pub longest: usize,
    /// True if the registrar registers parts of dma-bufs.
    pub dma_buf: bool,
    /// True if the registrar registers memory of devices.
    pub device_memory: bool,
}

impl RegistrarProperties {
    /// Makes the properties of a registrar of host memory, which pins bytes and has no longest
    /// range.
    #[must_use]
    pub const fn new(overlap: Overlap) -> RegistrarProperties {
        RegistrarProperties {
            overlap,
            granularity: 1,
            longest: usize::MAX,
            dma_buf: false,
            device_memory: false,
        }
    }

    /// Sets the granularity, in bytes: a power of two.
    #[must_use]
    pub const fn granularity(self, granularity: usize) -> RegistrarProperties {
        RegistrarProperties { granularity, ..self }
    }

    /// Sets the length of the longest range, in bytes.
    #[must_use]
    pub const fn longest(self, longest: usize) -> RegistrarProperties {
        RegistrarProperties { longest, ..self }
    }

    /// Sets whether the registrar registers parts of dma-bufs.
    #[must_use]
    pub const fn dma_buf(self, dma_buf: bool) -> RegistrarProperties {
        RegistrarProperties { dma_buf, ..self }
    }

    /// Sets whether the registrar registers memory of devices.
    #[must_use]
    pub const fn device_memory(self, device_memory: bool) -> RegistrarProperties {
        RegistrarProperties { device_memory, ..self }
    }

    /// Returns the number of bytes that the device pins for `span`, which count in a budget.
    #[must_use]
    #[inline]
    pub const fn footprint(&self, span: Span) -> usize {
        // A mask instead of a division, which each miss of a cache would make several times.
        let low = self.granularity.wrapping_sub(1);
        let start = span.start() & !low;
        match span.end().checked_add(low) {
            Some(end) => (end & !low) - start,
            None => usize::MAX - start,
        }
    }

    /// Returns the properties if they are valid. `device` is the name of the device.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a granularity that is no power of two, and a longest range of no
    /// bytes.
    pub(crate) fn check(self, device: &str) -> Result<RegistrarProperties> {
        if !self.granularity.is_power_of_two() {
            let bytes = self.granularity;
            return Err(Error::invalid(format!(
                "{device}: invalid granularity of {bytes} bytes: expected a power of two"
            )));
        }
        if self.longest == 0 {
            return Err(Error::invalid(format!("{device}: invalid longest range of 0 bytes")));
        }
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_footprint_has_whole_multiples_of_the_granularity() {
        let footprint = |granularity, start, length| {
            let properties = RegistrarProperties::new(Overlap::Free).granularity(granularity);
            properties.check("x").unwrap().footprint(Span::new(start, length).unwrap())
        };
        assert_eq!((footprint(1, 7, 5), footprint(4096, 4096, 4096)), (5, 4096));
        assert_eq!((footprint(4096, 4095, 2), footprint(4096, 4097, 1)), (8192, 4096));
        assert_eq!(footprint(4096, usize::MAX - 1, 1), 4095);
    }

    #[test]
    fn invalid_properties_are_named() {
        let properties = RegistrarProperties::new(Overlap::Free);
        let why = properties.granularity(3).check("card").unwrap_err().to_string();
        assert!(why.contains("card: invalid granularity of 3 bytes"), "{why}");
        assert!(
            properties.granularity(0).check("card").is_err() && properties.longest(0).check("card").is_err()
        );
    }
}
