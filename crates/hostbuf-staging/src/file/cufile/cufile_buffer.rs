//! Memory of a GPU that is registered with cuFile.

#![allow(unsafe_code, reason = "the library is called by foreign functions")]

use std::ops::Range;

use hostbuf_os::Bytes;

use super::cufile_driver::CuFileDriver;
use super::cufile_error::CuFileError;
use crate::device::{DeviceTarget, InvalidTarget};

/// Memory of a GPU that is registered with cuFile, so that reads and writes need no buffer of
/// cuFile's where the host has GPUDirect Storage. Dropping it ends the registration.
#[derive(Debug)]
pub struct CuFileBuffer {
    driver: CuFileDriver,
    target: DeviceTarget,
}

impl CuFileBuffer {
    /// Registers all of `target`, which no other buffer contains.
    ///
    /// # Errors
    /// [`CuFileError`].
    #[doc(alias = "cuFileBufRegister")]
    pub fn new(driver: &CuFileDriver, target: DeviceTarget) -> Result<CuFileBuffer, CuFileError> {
        let (address, bytes) = (target.address(), target.bytes());
        driver.call(|| {
            // SAFETY: the target keeps the memory as long as the buffer exists.
            let result =
                unsafe { (driver.functions().buffer_register)(address as *const _, bytes as usize, 0) };
            CuFileError::check(result, format_args!("cuFileBufRegister of {} at {address:#x}", Bytes(bytes)))
        })?;
        Ok(CuFileBuffer { driver: driver.clone(), target })
    }

    /// Returns the memory.
    #[must_use]
    pub fn target(&self) -> &DeviceTarget {
        &self.target
    }

    /// Checks that a part lies in the buffer.
    pub(super) fn check(&self, part: &Range<u64>) -> Result<(), InvalidTarget> {
        self.target.part(part.clone()).map(drop)
    }
}

impl Drop for CuFileBuffer {
    fn drop(&mut self) {
        if self.driver.context().is_inherited() {
            return;
        }
        let address = self.target.address();
        let ended = self.driver.call(|| {
            // SAFETY: registered by `new`, and no read or write uses it any more.
            let result = unsafe { (self.driver.functions().buffer_deregister)(address as *const _) };
            CuFileError::check(result, format_args!("cuFileBufDeregister of {address:#x}"))
        });
        if let Err(error) = ended {
            tracing::error!("{error}");
        }
    }
}
