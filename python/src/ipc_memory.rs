//! Memory of a GPU that other programs export by legacy handles.

use std::sync::Mutex;

use hostbuf_cuda::{CudaContext, Driver};
use hostbuf_os::poison::IgnorePoison;
use pyo3::prelude::*;

use crate::pool_error::{gpu_raised, invalid};

/// Memory of another program, until it is closed.
#[pyclass(frozen, module = "hostbuf._hostbuf")]
pub struct IpcMemoryHandle {
    memory: Mutex<Option<hostbuf_cuda::IpcMemory>>,
    size: usize,
}

#[pymethods]
impl IpcMemoryHandle {
    /// Returns the GPU's address of the first byte, or `None` if the memory is closed.
    fn address(&self) -> Option<u64> {
        self.memory.lock().ignore_poison().as_ref().map(hostbuf_cuda::IpcMemory::address)
    }

    /// Returns the size of the other program's allocation in bytes.
    fn size(&self) -> usize {
        self.size
    }

    fn close(&self, py: Python<'_>) {
        let held = self.memory.lock().ignore_poison().take();
        py.detach(|| drop(held));
    }
}

/// Opens the memory of a handle on the GPU with the number `gpu`. The first call loads the driver.
#[pyfunction]
pub fn open_ipc_memory(py: Python<'_>, handle: &[u8], gpu: u32) -> PyResult<IpcMemoryHandle> {
    let handle: [u8; 64] = handle.try_into().map_err(|_| {
        invalid(
            py,
            format!("invalid handle of {} bytes: expected the 64 of cudaIpcGetMemHandle", handle.len()),
        )
    })?;
    let opened = py.detach(|| {
        let context = CudaContext::retain(&Driver::find()?.gpu(gpu)?)?;
        hostbuf_cuda::IpcMemory::open(&context, handle)
    });
    let memory = opened.map_err(|error| gpu_raised(py, &error))?;
    let size = memory.bytes();
    Ok(IpcMemoryHandle { memory: Mutex::new(Some(memory)), size })
}
