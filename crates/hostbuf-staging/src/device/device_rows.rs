//! Copies of rows at equal distances to a device.

use super::device_copy::DeviceCopy;

/// Rows at equal distances in host memory, and their place in the memory of a device. All sizes are
/// bytes, except the height.
#[derive(Clone, Copy, Debug)]
#[doc(alias = "cudaMemcpy2DAsync")]
// Exhaustive: the operands of a copy.
pub struct DeviceRows {
    /// The first byte of the first row in the host memory.
    pub host: *mut u8,
    /// The distance from a row to the next in the host memory.
    pub host_pitch: usize,
    /// The device's address of the first row.
    pub address: u64,
    /// The distance from a row to the next in the memory of the device.
    pub pitch: usize,
    /// The length of a row.
    pub width: usize,
    /// The number of rows.
    pub height: usize,
}

impl DeviceRows {
    /// Returns the number of bytes of all rows.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.width as u64 * self.height as u64
    }

    /// Returns the copy of each row.
    pub fn copies(&self) -> impl Iterator<Item = DeviceCopy> + use<> {
        let rows = *self;
        (0..rows.height).map(move |row| DeviceCopy {
            host: rows.host.wrapping_add(row * rows.host_pitch),
            bytes: rows.width,
            address: rows.address + (row * rows.pitch) as u64,
        })
    }
}

impl From<DeviceCopy> for DeviceRows {
    fn from(DeviceCopy { host, bytes, address }: DeviceCopy) -> DeviceRows {
        DeviceRows { host, host_pitch: bytes, address, pitch: bytes, width: bytes, height: 1 }
    }
}
