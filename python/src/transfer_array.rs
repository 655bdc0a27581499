//! The arrays that transfers access.

#![allow(unsafe_code, reason = "promises that the memory of an array stays")]

use std::sync::{Arc, Mutex};

use hostbuf_os::forking::hold_around_fork;
use hostbuf_os::poison::IgnorePoison;
use hostbuf_staging::DeviceBuffer;
use pyo3::prelude::*;

/// The objects of transfers that ended when Python had no handle of them. The threads of a ring do
/// not need the interpreter, which may be ending, so they leave the objects here.
static LEFT: Mutex<Vec<Py<PyAny>>> = Mutex::new(Vec::new());

/// Releases the objects that threads of rings have left.
pub fn release_left(_py: Python<'_>) {
    hold_around_fork!(LEFT: Vec<Py<PyAny>>);
    let left = std::mem::take(&mut *LEFT.lock().ignore_poison());
    // Without the lock, since the end of an object may run any code.
    drop(left);
}

/// The object that keeps the memory of an array, until it is released.
pub struct KeptArray {
    object: Mutex<Option<Py<PyAny>>>,
}

impl KeptArray {
    pub fn new(object: Py<PyAny>) -> Arc<KeptArray> {
        Arc::new(KeptArray { object: Mutex::new(Some(object)) })
    }

    /// Releases the object of a transfer that has ended.
    pub fn release(&self, _py: Python<'_>) {
        let object = self.object.lock().ignore_poison().take();
        drop(object);
    }
}

impl Drop for KeptArray {
    fn drop(&mut self) {
        if let Some(object) = self.object.get_mut().ignore_poison().take() {
            LEFT.lock().ignore_poison().push(object);
        }
    }
}

/// The memory of an array as the target of transfers.
pub struct ArrayTarget {
    pub address: u64,
    pub bytes: u64,
    /// False for memory of a GPU.
    pub is_host: bool,
    /// Dropped after the last access.
    pub _kept: Arc<KeptArray>,
}

// SAFETY: the object keeps the memory at its address. The package's documentation asks the caller
// to leave the array alone until the transfer has ended.
unsafe impl DeviceBuffer for ArrayTarget {
    fn address(&self) -> u64 {
        self.address
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn is_host_memory(&self) -> bool {
        self.is_host
    }
}
