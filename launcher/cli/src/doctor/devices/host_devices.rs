//! The interface of the checks of one kind of device.

use crate::finding::Finding;

/// The devices of one kind on this host.
pub(super) trait HostDevices: Sync {
    /// Checks the devices, their driver and their library.
    fn findings(&self) -> Vec<Finding>;

    /// Returns whether there are such devices here whose registrations count against the limit on
    /// locked memory.
    fn lock_memory(&self) -> bool {
        false
    }
}
