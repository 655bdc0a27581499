//! The direction of copies.

/// The direction of copies between host memory and the memory of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
// Exhaustive: there is no third direction.
pub enum CopyDirection {
    /// From host memory to the device.
    ToDevice,
    /// From the device to host memory.
    ToHost,
}
