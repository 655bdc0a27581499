//! The native part of the Python package hostbuf. It is private to the package's modules.

mod arguments;
mod comm;
mod dma;
mod error;
mod file;
mod fill;
#[cfg(feature = "cuda")]
mod gpu_rings;
#[cfg(feature = "cuda")]
mod gpu_section;
#[cfg(feature = "cuda")]
mod gpu_transfers;
mod handle;
mod host_ring;
#[cfg(feature = "cuda")]
mod ipc_memory;
mod load;
mod load_error;
mod memory;
mod os_error;
mod placement;
mod pool;
mod pool_block;
mod pool_dlpack;
mod pool_error;
#[cfg(feature = "cuda")]
mod pool_gpu;
#[cfg(feature = "cuda")]
mod pool_gpu_block;
#[cfg(feature = "cuda")]
mod pool_gpu_ref;
#[cfg(feature = "cuda")]
mod pool_gpu_stream;
mod pool_memory;
mod pool_owner;
mod pool_wait;
mod register;
mod running_transfer;
mod tensor_slices;
mod transfer;
mod transfer_array;
mod transfer_direction;
mod transfer_error;
mod transfer_file;
mod writers;

use pyo3::exceptions::PyImportError;
use pyo3::ffi;
use pyo3::prelude::*;

#[pymodule]
#[allow(unsafe_code, reason = "asks for the interpreter by a foreign function")]
fn _hostbuf(module: &Bound<'_, PyModule>) -> PyResult<()> {
    // SAFETY: the importing thread is attached to an interpreter.
    if unsafe { ffi::PyInterpreterState_GetID(ffi::PyInterpreterState_Get()) } != 0 {
        let why = "hostbuf works only in the main interpreter of a process, since buffers and devices belong to the process";
        return Err(PyImportError::new_err(why));
    }
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("Memory", memory::type_of(module.py())?)?;
    module.add_class::<handle::BufferHandle>()?;
    module.add_class::<fill::Arena>()?;
    module.add_class::<dma::AdoptedMemory>()?;
    module.add_class::<register::Device>()?;
    module.add_class::<register::Registration>()?;
    module.add_class::<register::Cache>()?;
    module.add_class::<register::Lease>()?;
    module.add("BlockExporter", pool_memory::exporter_type(module.py())?)?;
    module.add_class::<pool::PoolHandle>()?;
    module.add_class::<pool::ProducerHandle>()?;
    module.add_class::<pool_wait::ReadyQueue>()?;
    module.add_class::<pool_wait::PendingBlock>()?;
    module.add_class::<pool_block::BlockHandle>()?;
    module.add_class::<pool_block::BlockRefHandle>()?;
    module.add_class::<file::FileHandle>()?;
    module.add_class::<transfer::TransferHandle>()?;
    module.add_class::<tensor_slices::TensorSlices>()?;
    #[cfg(feature = "cuda")]
    pool_gpu::add_to(module)?;
    module.add_function(wrap_pyfunction!(pool::element_type, module)?)?;
    module.add_function(wrap_pyfunction!(pool::typestr, module)?)?;
    module.add_function(wrap_pyfunction!(pool::parse_token, module)?)?;
    module.add_function(wrap_pyfunction!(handle::launched, module)?)?;
    module.add_function(wrap_pyfunction!(handle::attach, module)?)?;
    module.add_function(wrap_pyfunction!(handle::given, module)?)?;
    module.add_function(wrap_pyfunction!(handle::allocate, module)?)?;
    module.add_function(wrap_pyfunction!(fill::initialize, module)?)?;
    module.add_function(wrap_pyfunction!(fill::initialize_job, module)?)?;
    module.add_function(wrap_pyfunction!(fill::root, module)?)?;
    module.add_function(wrap_pyfunction!(memory::close, module)?)?;
    module.add_function(wrap_pyfunction!(memory::span_of, module)?)?;
    module.add_function(wrap_pyfunction!(file::check_backend, module)?)?;
    module.add_function(wrap_pyfunction!(file::page_cache, module)?)?;
    module.add_function(wrap_pyfunction!(file::drop_page_cache, module)?)?;
    module.add_function(wrap_pyfunction!(load::read_table, module)?)?;
    module.add_function(wrap_pyfunction!(load::load_files, module)?)?;
    module.add_function(wrap_pyfunction!(load::loaded_files, module)?)?;
    module.add_function(wrap_pyfunction!(dma::adopt_memory, module)?)?;
    module.add_function(wrap_pyfunction!(register::probe, module)?)?;
    module.add_function(wrap_pyfunction!(register::monitor, module)?)
}
