//! Devices that are selected by name at run time. Each kind of device is one file, which implements
//! [`RegistrarKind`], and one entry of [`ALL`].

mod cuda;
mod device;
mod kind;
mod list;
mod mlock;
mod name;
mod rdma;

pub use device::{Device, DeviceHandle, DeviceKey, DeviceObjects, DevicePart};
pub use kind::{DeviceCheck, SystemLibrary};
pub use list::{DeviceList, ListedDevice};
pub use name::DeviceName;

use kind::RegistrarKind;

/// All kinds of devices, in the order in which messages list them.
const ALL: [&dyn RegistrarKind; 3] = [&cuda::CudaKind, &rdma::RdmaKind, &mlock::MlockKind];
