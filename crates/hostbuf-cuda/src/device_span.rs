//! Ranges of a GPU's addresses.

/// A range of a GPU's addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceSpan {
    address: u64,
    bytes: usize,
}

impl DeviceSpan {
    /// Makes a span of its first address and its length in bytes. The driver checks it when it is
    /// used.
    #[must_use]
    pub fn new(address: u64, bytes: usize) -> DeviceSpan {
        DeviceSpan { address, bytes }
    }

    /// Returns the address of the first byte.
    #[must_use]
    pub fn address(self) -> u64 {
        self.address
    }

    /// Returns the length in bytes.
    #[must_use]
    pub fn bytes(self) -> usize {
        self.bytes
    }
}
