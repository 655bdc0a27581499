//! Blocks that a producer writes, and blocks that a process reads.

use std::sync::{Arc, Mutex};

use hostbuf::register::DeviceName;
use hostbuf_os::poison::IgnorePoison;
use hostbuf_pool::{ArrayLayout, BlockHeader, DmaPath, ElementType, PublishError};
use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::error::raised;
use crate::pool_dlpack::{TensorMemory, dlpack};
use crate::pool_error::{invalid, pool_raised};
use crate::pool_memory::block_memory;
use crate::pool_owner::{AcquiredBlock, ViewOwner, WritableBlock};

/// The use of a producer's block.
enum WriteState {
    Writing(Arc<WritableBlock>),
    Published,
    Freed,
}

impl WriteState {
    /// Returns the error of a call for a block that is being written.
    fn refusal(&self) -> PyErr {
        PyValueError::new_err(match self {
            WriteState::Writing(_) => "the block is being written",
            WriteState::Published => "the block is published",
            WriteState::Freed => "the block is freed",
        })
    }
}

/// A block that its producer writes, until it is published or freed.
#[pyclass(frozen, module = "hostbuf._hostbuf")]
pub struct BlockHandle {
    state: Mutex<WriteState>,
    layout: ArrayLayout,
}

/// Returns the layout of the bytes of a content.
fn bytes_layout(length: u64) -> ArrayLayout {
    ArrayLayout::contiguous(ElementType::UInt8, &[length]).expect("a block is no larger than i64::MAX")
}

impl BlockHandle {
    pub fn new(block: Arc<WritableBlock>, layout: ArrayLayout) -> BlockHandle {
        BlockHandle { state: Mutex::new(WriteState::Writing(block)), layout }
    }

    fn writable(&self, py: Python<'_>) -> PyResult<Arc<WritableBlock>> {
        let block = match &*self.state.lock().ignore_poison() {
            WriteState::Writing(block) => block.clone(),
            other => return Err(other.refusal()),
        };
        match block.block.is_mapped() {
            true => Ok(block),
            false => Err(pool_raised(py, hostbuf_pool::PoolError::Forked)),
        }
    }
}

#[pymethods]
impl BlockHandle {
    /// Returns `writing`, `published` or `freed`.
    #[getter]
    fn state(&self) -> &'static str {
        match &*self.state.lock().ignore_poison() {
            WriteState::Writing(_) => "writing",
            WriteState::Published => "published",
            WriteState::Freed => "freed",
        }
    }

    /// Returns the name of the element type, the extents and the strides.
    fn layout(&self) -> (&'static str, Vec<u64>, Vec<i64>) {
        fields(&self.layout)
    }

    /// Returns an object with the buffer protocol: of the array, or of all bytes of the block.
    fn memory<'py>(&self, py: Python<'py>, whole: bool) -> PyResult<Bound<'py, PyAny>> {
        let block = self.writable(py)?;
        let layout = if whole { bytes_layout(block.block.len() as u64) } else { self.layout };
        block_memory(py, ViewOwner::Writable(block), &layout)
    }

    fn dlpack<'py>(&self, py: Python<'py>, versioned: bool) -> PyResult<Bound<'py, PyAny>> {
        dlpack(py, ViewOwner::Writable(self.writable(py)?), &self.layout, versioned)
    }

    fn publish<'py>(
        &self,
        py: Python<'py>,
        length: Option<u64>,
        frame: u64,
        captured_ns: Option<u64>,
        user_data: &[u8],
    ) -> PyResult<Bound<'py, PyBytes>> {
        // The state is that of the block until then.
        drop(self.writable(py)?);
        let content = ContentFields { length, frame, captured_ns, user_data };
        let header = content_header(py, &self.layout, &content)?;
        let mut state = self.state.lock().ignore_poison();
        let block = match std::mem::replace(&mut *state, WriteState::Published) {
            WriteState::Writing(block) => block,
            // Another thread has published or freed it meanwhile.
            other => {
                let error = other.refusal();
                *state = other;
                return Err(error);
            }
        };
        let WritableBlock { block, address, pool } = match Arc::try_unwrap(block) {
            Ok(block) => block,
            Err(block) => {
                let views = Arc::strong_count(&block) - 1;
                *state = WriteState::Writing(block);
                return Err(PyBufferError::new_err(format!(
                    "the block cannot be published: {views} arrays or views of it exist, through which its readers' data could be \
                     overwritten: delete them (del array) before publish()"
                )));
            }
        };
        match block.publish_with(header) {
            Ok(token) => Ok(PyBytes::new(py, &token.to_bytes())),
            Err(PublishError { reason, block, .. }) => {
                *state = WriteState::Writing(Arc::new(WritableBlock { block, address, pool }));
                Err(invalid(py, format!("invalid content: {reason}")))
            }
        }
    }

    /// Frees the block, unless it is published. Its memory is reused once its last view is gone.
    fn free(&self) {
        let mut state = self.state.lock().ignore_poison();
        if matches!(*state, WriteState::Writing(_)) {
            *state = WriteState::Freed;
        }
    }
}

/// The fields that a producer adds to the description of an array.
pub struct ContentFields<'a> {
    pub length: Option<u64>,
    pub frame: u64,
    pub captured_ns: Option<u64>,
    pub user_data: &'a [u8],
}

/// Returns the header of the content of a block whose array has a layout.
pub fn content_header(
    py: Python<'_>,
    layout: &ArrayLayout,
    content: &ContentFields<'_>,
) -> PyResult<BlockHeader> {
    let layout = match (layout.element(), content.length) {
        (ElementType::Opaque, Some(length)) => ArrayLayout::contiguous(ElementType::Opaque, &[length])
            .map_err(|error| invalid(py, error.to_string()))?,
        _ => *layout,
    };
    let mut header = BlockHeader::new(layout);
    (header.frame, header.captured_ns) = (content.frame, content.captured_ns);
    if let Some(length) = content.length {
        header.length = length;
    }
    let (most, size) = (BlockHeader::USER_DATA_SIZE, content.user_data.len());
    let Some(place) = header.user_data.get_mut(..size) else {
        return Err(invalid(py, format!("invalid user_data of {size} bytes: expected at most {most}")));
    };
    place.copy_from_slice(content.user_data);
    Ok(header)
}

/// The name of an element type, the extents and the strides.
pub type ArrayFields = (&'static str, Vec<u64>, Vec<i64>);

/// Returns the fields of a layout.
pub fn fields(layout: &ArrayLayout) -> ArrayFields {
    (layout.element().name(), layout.shape().to_vec(), layout.strides().to_vec())
}

/// The length, the generation, the sequence number, the times of publication and capture, and the
/// frame number.
pub type HeaderNumbers = (u64, u64, u64, u64, Option<u64>, u64);

/// Returns the numbers of a header.
pub fn numbers(header: &BlockHeader) -> HeaderNumbers {
    let times = (header.published_ns, header.captured_ns);
    (header.length, header.generation, header.sequence, times.0, times.1, header.frame)
}

/// A hold on a published block, until it is released.
#[pyclass(frozen, module = "hostbuf._hostbuf")]
pub struct BlockRefHandle {
    held: Mutex<Option<AcquiredBlock>>,
    header: BlockHeader,
}

impl BlockRefHandle {
    pub fn new(held: AcquiredBlock) -> BlockRefHandle {
        let header = *held.held.header();
        BlockRefHandle { held: Mutex::new(Some(held)), header }
    }

    /// Returns a further hold.
    fn hold(&self, py: Python<'_>) -> PyResult<AcquiredBlock> {
        match &*self.held.lock().ignore_poison() {
            None => Err(PyValueError::new_err("the block is released")),
            Some(held) if !held.held.is_mapped() => Err(pool_raised(py, hostbuf_pool::PoolError::Forked)),
            Some(held) => Ok(held.clone()),
        }
    }
}

#[pymethods]
impl BlockRefHandle {
    /// Returns the name of the element type, the extents and the strides.
    fn layout(&self) -> (&'static str, Vec<u64>, Vec<i64>) {
        fields(&self.header.layout)
    }

    fn numbers(&self) -> HeaderNumbers {
        numbers(&self.header)
    }

    fn user_data<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.header.user_data)
    }

    fn address(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.hold(py)?.held.as_ptr() as usize)
    }

    /// Returns an object with the buffer protocol: of the array, or of all bytes of the content. It
    /// has a hold of its own.
    fn memory<'py>(&self, py: Python<'py>, whole: bool) -> PyResult<Bound<'py, PyAny>> {
        let layout = if whole { bytes_layout(self.header.length) } else { self.header.layout };
        block_memory(py, ViewOwner::Held(Box::new(self.hold(py)?)), &layout)
    }

    /// Returns a capsule of DLPack, with a hold of its own or with a copy.
    fn dlpack<'py>(
        &self,
        py: Python<'py>,
        versioned: bool,
        copy: bool,
        pinned: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let layout = &self.header.layout;
        let held = self.hold(py)?;
        if !copy {
            let memory = TensorMemory::from(ViewOwner::Held(Box::new(held)));
            let memory = if pinned { memory.pinned() } else { memory };
            return dlpack(py, memory, layout, versioned);
        }
        let bytes = &held.held.as_slice()[..layout.extent_bytes() as usize];
        let words = bytes.chunks(8).map(|chunk| {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            u64::from_ne_bytes(word)
        });
        dlpack(py, ViewOwner::Copy(words.collect()), layout, versioned)
    }

    /// Returns the address at which a device reads the content, or the reason why it has to be
    /// copied.
    fn dma(&self, py: Python<'_>, device: &str) -> PyResult<(Option<u64>, Option<String>)> {
        let device: DeviceName = device.parse().map_err(|error| raised(py, error))?;
        let held = self.hold(py)?;
        Ok(match py.detach(|| held.held.dma(&device)) {
            DmaPath::Direct(address) => (Some(address), None),
            DmaPath::Copy(why) => (None, Some(why.to_string())),
        })
    }

    /// Moves the hold to another handle.
    fn split(&self) -> BlockRefHandle {
        let held = self.held.lock().ignore_poison().take();
        BlockRefHandle { held: Mutex::new(held), header: self.header }
    }

    #[getter]
    fn released(&self) -> bool {
        self.held.lock().ignore_poison().is_none()
    }

    fn release(&self) {
        drop(self.held.lock().ignore_poison().take());
    }
}
