//! Producers of blocks on a GPU, and their readers.

use std::sync::{Arc, Mutex};

use hostbuf_cuda::{CudaContext, Driver};
use hostbuf_os::poison::IgnorePoison;
use hostbuf_pool::{GpuProducer, PoolError, ProducerOptions, Token};
use pyo3::IntoPyObjectExt;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::gpu_rings::array_stream;
use crate::gpu_section::{GpuSectionHandle, gpu_section};
use crate::ipc_memory::{IpcMemoryHandle, open_ipc_memory};
use crate::pool::{LayoutFields, PoolHandle, array_layout, take_block};
use crate::pool_error::{acquire_raised, gpu_raised, pool_raised};
use crate::pool_gpu_block::GpuBlockHandle;
use crate::pool_gpu_ref::GpuBlockRefHandle;
use crate::pool_gpu_stream::{GpuEvent, event_after};
use crate::pool_wait::{BlockMaker, PendingBlock, ReadyQueue};

/// Adds the classes and functions for GPU memory.
pub fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<GpuProducerHandle>()?;
    module.add_class::<GpuBlockHandle>()?;
    module.add_class::<GpuBlockRefHandle>()?;
    module.add_class::<GpuEvent>()?;
    module.add_class::<IpcMemoryHandle>()?;
    module.add_class::<GpuSectionHandle>()?;
    module.add_function(wrap_pyfunction!(gpu_section, module)?)?;
    module.add_function(wrap_pyfunction!(open_ipc_memory, module)?)?;
    module.add_function(wrap_pyfunction!(event_after, module)?)?;
    module.add_function(wrap_pyfunction!(array_stream, module)?)?;
    module.add_function(wrap_pyfunction!(gpu_producer, module)?)?;
    module.add_function(wrap_pyfunction!(acquire_gpu, module)?)
}

/// Makes a producer of blocks on the GPU with the number `gpu`. The first call loads the driver.
#[pyfunction]
#[allow(clippy::too_many_arguments, reason = "the keywords of the package's method")]
fn gpu_producer(
    py: Python<'_>,
    pool: &PoolHandle,
    gpu: u32,
    block_bytes: u64,
    blocks: u32,
    readers: u32,
    retain: Option<u32>,
    quota: Option<u32>,
    wait_for: Vec<String>,
    stream: &str,
) -> PyResult<GpuProducerHandle> {
    let pool = pool.open()?;
    let mut options = ProducerOptions::new(block_bytes, blocks).readers(readers).stream(stream);
    (options.retain, options.quota, options.wait_for) = (retain, quota, wait_for);
    let context = py.detach(|| CudaContext::retain(&Driver::find()?.gpu(gpu)?));
    let context = context.map_err(|error| gpu_raised(py, &error))?;
    let made = py.detach(|| pool.gpu_producer(&options, &context));
    let producer = made.map_err(|error| pool_raised(py, error))?;
    Ok(GpuProducerHandle { held: Mutex::new(Some(Arc::new(producer))) })
}

/// Acquires the block of a token that lies on a GPU.
#[pyfunction]
fn acquire_gpu(py: Python<'_>, pool: &PoolHandle, token: &[u8]) -> PyResult<GpuBlockRefHandle> {
    let pool = pool.open()?;
    let held = py.detach(|| pool.acquire_gpu(&Token::from_bytes(token)?));
    let held = held.map_err(|error| acquire_raised(py, error))?;
    Ok(GpuBlockRefHandle::new(held))
}

/// A producer of blocks on a GPU, until it is closed.
#[pyclass(frozen, module = "hostbuf._hostbuf")]
pub struct GpuProducerHandle {
    held: Mutex<Option<Arc<GpuProducer>>>,
}

impl GpuProducerHandle {
    fn open(&self) -> PyResult<Arc<GpuProducer>> {
        let held = self.held.lock().ignore_poison();
        held.clone().ok_or_else(|| PyValueError::new_err("the producer is closed"))
    }
}

#[pymethods]
impl GpuProducerHandle {
    /// Takes a free block as the producer of blocks on the host does.
    #[pyo3(signature = (layout, wait, limit))]
    fn take(
        &self,
        py: Python<'_>,
        layout: Option<LayoutFields>,
        wait: f64,
        limit: Option<f64>,
    ) -> PyResult<Option<GpuBlockHandle>> {
        let producer = self.open()?;
        let layout = array_layout(py, layout, producer.block_bytes())?;
        if producer.context().is_inherited() {
            return Err(pool_raised(py, PoolError::Forked));
        }
        let taken =
            take_block(py, (wait, limit), || producer.try_take(), |wait| producer.take_timeout(wait))?;
        Ok(taken.map(|block| GpuBlockHandle::new(Arc::new(block), layout)))
    }

    /// Takes a free block for a task as the producer of blocks on the host does.
    fn request(
        &self,
        py: Python<'_>,
        layout: Option<LayoutFields>,
        queue: &ReadyQueue,
        number: u64,
    ) -> PyResult<PendingBlock> {
        let producer = self.open()?;
        let layout = array_layout(py, layout, producer.block_bytes())?;
        Ok(PendingBlock::new(queue.waker(number), async move {
            let block = producer.take_async().await?;
            let made = move |py: Python<'_>| GpuBlockHandle::new(Arc::new(block), layout).into_py_any(py);
            Ok(Box::new(made) as BlockMaker)
        }))
    }

    fn device(&self) -> PyResult<u32> {
        Ok(self.open()?.context().gpu().ordinal())
    }

    fn block_bytes(&self) -> PyResult<u64> {
        Ok(self.open()?.block_bytes())
    }

    fn blocks(&self) -> PyResult<u32> {
        Ok(self.open()?.blocks())
    }

    #[getter]
    fn closed(&self) -> bool {
        self.held.lock().ignore_poison().is_none()
    }

    fn close(&self, py: Python<'_>) {
        let held = self.held.lock().ignore_poison().take();
        py.detach(|| {
            if let Some(producer) = &held {
                producer.close();
            }
            drop(held);
        });
    }
}
