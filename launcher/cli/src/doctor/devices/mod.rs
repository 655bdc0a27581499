//! The devices of this host: their drivers and libraries. Each kind that needs more than the check
//! of [`DeviceName::check`](hostbuf::register::DeviceName::check) has a file of its own.

mod cuda;
mod host_devices;
mod library;
mod rdma;

use crate::finding::Finding;
use host_devices::HostDevices;

/// The kinds of devices with checks of their own, in the order of their findings.
const ALL: [&dyn HostDevices; 2] = [&cuda::Gpus, &rdma::RdmaDevices];

pub(super) fn lines() -> Vec<Finding> {
    ALL.iter().flat_map(|kind| kind.findings()).collect()
}

/// Returns whether there are devices here whose registrations count against the limit on locked
/// memory.
pub(super) fn lock_memory() -> bool {
    ALL.iter().any(|kind| kind.lock_memory())
}
