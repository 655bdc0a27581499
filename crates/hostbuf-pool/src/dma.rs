//! The way in which a device reads a block.

use std::fmt;

/// The way in which a device reads the content of a held block.
#[derive(Clone, Debug, PartialEq, Eq)]
// Exhaustive: a device reads the block or it does not.
pub enum DmaPath {
    /// The device reads the block itself, at this device address, while the block is held.
    Direct(u64),
    /// The device cannot read the block. The caller copies the content for it.
    Copy(CopyReason),
}

/// The reason why a device cannot read a block.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CopyReason {
    /// This process cannot use the device, for the stated reason.
    NoDevice(String),
    /// The device does not register the memory of the block, for the stated reason.
    Unregistered(String),
    /// The process is a child forked from the one that acquired the block.
    Forked,
}

impl DmaPath {
    /// Returns the device address, if the device reads the block itself.
    #[must_use]
    pub fn direct(&self) -> Option<u64> {
        match self {
            DmaPath::Direct(address) => Some(*address),
            DmaPath::Copy(_) => None,
        }
    }
}

impl fmt::Display for CopyReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CopyReason::NoDevice(why) => write!(f, "the device cannot be used: {why}"),
            CopyReason::Unregistered(why) => write!(f, "the memory is not registered: {why}"),
            CopyReason::Forked => f.write_str("a forked child has no part in its parent's blocks"),
        }
    }
}
