//! Calls in a thread whose program captures a stream.

#![allow(unsafe_code, reason = "the driver is called by a foreign function")]

use std::ffi::c_uint;
use std::marker::PhantomData;

use cudarc::driver::sys;

use crate::driver::Driver;

/// A change of this thread: it may make calls that have nothing to do with streams being captured,
/// such as copies on other streams and questions about events. Without it the driver refuses some
/// of them while this thread captures a stream, and the capture fails. The mode of before returns
/// when this is dropped.
#[derive(Debug)]
#[must_use = "the mode of before returns when this is dropped"]
pub struct RelaxedCapture {
    driver: Option<Driver>,
    before: c_uint,
    /// A pointer, since the mode is that of this thread.
    _of_this_thread: PhantomData<*const ()>,
}

impl RelaxedCapture {
    /// Changes the mode of this thread. A driver without the function has no such modes.
    #[doc(alias = "cuThreadExchangeStreamCaptureMode")]
    pub fn begin(driver: Driver) -> RelaxedCapture {
        let relaxed = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED as c_uint;
        let before = exchange(driver, relaxed);
        RelaxedCapture {
            driver: before.is_some().then_some(driver),
            before: before.unwrap_or(relaxed),
            _of_this_thread: PhantomData,
        }
    }
}

impl Drop for RelaxedCapture {
    fn drop(&mut self) {
        if let Some(driver) = self.driver {
            exchange(driver, self.before);
        }
    }
}

/// Sets the mode of this thread, and returns the one of before.
fn exchange(driver: Driver, mut mode: c_uint) -> Option<c_uint> {
    let functions = driver.functions().capture().ok()?;
    // SAFETY: `mode` is a local variable.
    let code = unsafe { (functions.exchange_mode)(&raw mut mode) };
    (code == 0).then_some(mode)
}
