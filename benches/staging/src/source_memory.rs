//! Memory of a device from which rings write.

use std::error::Error;

use hostbuf_staging::{CopyDevice, DeviceTarget, Ring, RingOptions};

/// Memory of a device, with copies that do not go through a ring.
pub(crate) trait SourceMemory {
    type Device: CopyDevice;

    /// Makes a ring of the device.
    ///
    /// # Errors
    /// Those of the ring and of its memory.
    fn ring(&self, options: RingOptions) -> Result<Ring<Self::Device>, Box<dyn Error>>;

    /// Returns the memory as one end of a transfer.
    fn target(&self) -> DeviceTarget;

    /// Returns the number of bytes.
    fn bytes(&self) -> usize {
        self.target().bytes() as usize
    }

    /// Copies `content` to the memory from `offset` on.
    ///
    /// # Errors
    /// The device's.
    ///
    /// # Panics
    /// If the memory ends before the content.
    fn store(&mut self, content: &[u8], offset: usize) -> Result<(), Box<dyn Error>>;

    /// Copies the memory from `offset` on to `into`.
    ///
    /// # Errors
    /// The device's.
    ///
    /// # Panics
    /// If the memory ends before `into`.
    fn load(&self, into: &mut [u8], offset: usize) -> Result<(), Box<dyn Error>>;
}
