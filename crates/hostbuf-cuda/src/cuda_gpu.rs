//! A GPU that this process sees.

#![allow(unsafe_code, reason = "the driver is called by foreign functions")]

use std::ffi::{CStr, c_char, c_int, c_uint};
use std::fmt;

use cudarc::driver::sys::{self, CUdevice_attribute as Attribute};

use crate::cuda_code::CudaCode;
use crate::cuda_error::CudaError;
use crate::driver::Driver;
use crate::gpu_uuid::GpuUuid;

/// A GPU that this process sees through CUDA. It holds no context.
#[derive(Clone, Copy)]
pub struct CudaGpu {
    driver: Driver,
    ordinal: u32,
    device: sys::CUdevice,
}

/// A feature that a GPU and its driver support or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GpuFeature {
    /// Registering host memory that is mapped read-only.
    #[doc(alias = "CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED")]
    ReadOnlyRegistration,
    /// Virtual memory management: [`PhysicalMemory`](crate::PhysicalMemory).
    #[doc(alias = "CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED")]
    VirtualMemory,
    /// Memory that processes share by a file descriptor:
    /// [`PhysicalMemory::export`](crate::PhysicalMemory::export).
    #[doc(alias = "CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED")]
    DescriptorExport,
    /// Events that processes share: [`CudaEvent::interprocess`](crate::CudaEvent::interprocess).
    #[doc(alias = "CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED")]
    IpcEvents,
    /// Kernels that use registered host memory at the addresses that the host has for it:
    /// [`DeferredCopies`](crate::DeferredCopies).
    #[doc(alias = "CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM")]
    HostAddresses,
}

impl GpuFeature {
    fn attribute(self) -> Attribute {
        match self {
            GpuFeature::ReadOnlyRegistration => {
                Attribute::CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED
            }
            GpuFeature::VirtualMemory => Attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_ADDRESS_MANAGEMENT_SUPPORTED,
            GpuFeature::DescriptorExport => {
                Attribute::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED
            }
            GpuFeature::IpcEvents => Attribute::CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED,
            GpuFeature::HostAddresses => {
                Attribute::CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM
            }
        }
    }
}

impl CudaGpu {
    pub(crate) fn new(driver: Driver, ordinal: u32, device: sys::CUdevice) -> CudaGpu {
        CudaGpu { driver, ordinal, device }
    }

    /// Returns the driver.
    #[must_use]
    pub fn driver(&self) -> Driver {
        self.driver
    }

    /// Returns the number of the GPU in this process, counted from 0 in CUDA's order. Another
    /// process may have another number for it.
    #[must_use]
    pub fn ordinal(&self) -> u32 {
        self.ordinal
    }

    pub(crate) fn device(&self) -> sys::CUdevice {
        self.device
    }

    /// Returns the product's name.
    ///
    /// # Errors
    /// The driver's.
    #[doc(alias = "cuDeviceGetName")]
    pub fn name(&self) -> Result<String, CudaError> {
        let mut text = [0 as c_char; 128];
        let name = self.driver.functions().basic.device_name;
        // SAFETY: `text` has the length that is passed, and one byte more.
        let answer = unsafe { name(text.as_mut_ptr(), text.len() as c_int - 1, self.device) };
        self.driver.checked(answer, format_args!("cuDeviceGetName of {self}"))?;
        // SAFETY: the last byte is always 0.
        Ok(unsafe { CStr::from_ptr(text.as_ptr()) }.to_string_lossy().into_owned())
    }

    /// Returns the UUID.
    ///
    /// # Errors
    /// The driver's.
    #[doc(alias = "cuDeviceGetUuid_v2")]
    pub fn uuid(&self) -> Result<GpuUuid, CudaError> {
        let uuid = self.driver.functions().uuid()?.uuid;
        let mut found = sys::CUuuid { bytes: [0; 16] };
        // SAFETY: `found` is a local variable.
        let answer = unsafe { uuid(&raw mut found, self.device) };
        self.driver.checked(answer, format_args!("cuDeviceGetUuid of {self}"))?;
        Ok(GpuUuid(found.bytes.map(|byte| byte.to_ne_bytes()[0])))
    }

    /// Returns the address of the GPU on the PCI bus, such as `0000:1b:00.0`.
    ///
    /// # Errors
    /// The driver's.
    #[doc(alias = "cuDeviceGetPCIBusId")]
    pub fn pci_address(&self) -> Result<String, CudaError> {
        let mut text = [0 as c_char; 32];
        let address = self.driver.functions().pci()?.address;
        // SAFETY: `text` has the length that is passed, and one byte more.
        let answer = unsafe { address(text.as_mut_ptr(), text.len() as c_int - 1, self.device) };
        self.driver.checked(answer, format_args!("cuDeviceGetPCIBusId of {self}"))?;
        // SAFETY: the last byte is always 0.
        Ok(unsafe { CStr::from_ptr(text.as_ptr()) }.to_string_lossy().to_ascii_lowercase())
    }

    /// Returns whether the GPU and the driver support `feature`. A driver that does not know the
    /// feature does not support it.
    #[must_use]
    pub fn supports(&self, feature: GpuFeature) -> bool {
        self.reports(feature) == Some(true)
    }

    /// Returns whether the driver reports support of `feature`, or `None` if the driver does not
    /// know the feature.
    #[doc(alias = "cuDeviceGetAttribute")]
    #[must_use]
    pub fn reports(&self, feature: GpuFeature) -> Option<bool> {
        let mut value = 0;
        let attribute = self.driver.functions().basic.attribute;
        // SAFETY: `value` is a local variable; the driver returns an error for an unknown attribute
        // or device.
        let answer = unsafe { attribute(&raw mut value, feature.attribute() as c_uint, self.device) };
        CudaCode::of(answer).is_none().then_some(value != 0)
    }
}

impl PartialEq for CudaGpu {
    fn eq(&self, other: &CudaGpu) -> bool {
        self.device == other.device
    }
}

impl Eq for CudaGpu {}

impl fmt::Display for CudaGpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GPU {}", self.ordinal)
    }
}

impl fmt::Debug for CudaGpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CudaGpu").field("ordinal", &self.ordinal).finish_non_exhaustive()
    }
}
