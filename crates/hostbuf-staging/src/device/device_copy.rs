//! A copy between the host and a device.

/// A copy between the host and a device.
#[derive(Clone, Copy, Debug)]
// Exhaustive: the operands of a copy.
pub struct DeviceCopy {
    /// The first byte of the host memory.
    pub host: *mut u8,
    /// The number of bytes.
    pub bytes: usize,
    /// The device's address of the first byte of its memory.
    pub address: u64,
}

impl Default for DeviceCopy {
    fn default() -> DeviceCopy {
        DeviceCopy { host: std::ptr::null_mut(), bytes: 0, address: 0 }
    }
}
