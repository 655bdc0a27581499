//! Connections to pools, and producers.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use hostbuf_os::poison::IgnorePoison;
use hostbuf_pool as library;
use hostbuf_pool::{ArrayLayout, ElementType, PoolError, PoolKind, PoolMode, PoolOptions, TakeError};
use pyo3::IntoPyObjectExt;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::pool_block::{BlockHandle, BlockRefHandle};
use crate::pool_error::{acquire_raised, invalid, pool_raised, take_raised};
use crate::pool_owner::{AcquiredBlock, WritableBlock};
use crate::pool_wait::{BlockMaker, PendingBlock, ReadyQueue};

/// The name of an element type, the extents, and the strides in bytes.
pub type LayoutFields = (String, Vec<u64>, Option<Vec<i64>>);

/// The fields of a token: pool, segment, block, generation, length.
type TokenFields = (String, u32, u32, u64, u64);

/// Converts a number of seconds.
fn seconds(py: Python<'_>, name: &str, number: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(number)
        .map_err(|_| invalid(py, format!("invalid {name} {number}: expected a number of seconds from 0")))
}

/// Returns the name and the size of an element type from its name or its `typestr`, or `None` if
/// there is no such type.
#[pyfunction]
pub fn element_type(text: &str) -> Option<(&'static str, u64)> {
    let element = ElementType::from_name(text).or_else(|| ElementType::from_typestr(text));
    element.map(|element| (element.name(), element.size_bytes()))
}

/// Returns the `typestr` of the array interface, or `None` for a type that numpy does not have.
#[pyfunction]
pub fn typestr(name: &str) -> Option<String> {
    ElementType::from_name(name).and_then(ElementType::typestr)
}

/// Returns the fields of a token.
#[pyfunction]
pub fn parse_token(py: Python<'_>, token: &[u8]) -> PyResult<TokenFields> {
    let token = library::Token::from_bytes(token).map_err(|error| acquire_raised(py, error.into()))?;
    Ok((token.pool.to_string(), token.segment, token.block, token.generation, token.length))
}

/// A connection to a pool, until it is closed.
#[pyclass(frozen, module = "hostbuf._hostbuf")]
pub struct PoolHandle {
    pool: Mutex<Option<library::Pool>>,
}

impl PoolHandle {
    /// Returns the connection.
    ///
    /// # Errors
    /// `ValueError` if it is closed.
    pub fn open(&self) -> PyResult<library::Pool> {
        let held = self.pool.lock().ignore_poison();
        held.clone().ok_or_else(|| PyValueError::new_err("the pool is closed"))
    }
}

#[pymethods]
impl PoolHandle {
    #[new]
    fn connect(
        py: Python<'_>,
        name: &str,
        mode: Option<&str>,
        socket: Option<&str>,
        path: Option<std::path::PathBuf>,
        timeout: f64,
    ) -> PyResult<PoolHandle> {
        let made = || {
            let mut options = match mode {
                None => PoolOptions::from_environment(name)?,
                Some(mode) => PoolOptions::new(name).mode(mode.parse()?),
            };
            if socket.is_some() && path.is_some() {
                let what = "a socket and a path were given: give one of them".to_owned();
                return Err(PoolError::Invalid { what });
            }
            // A program that names a broker means no private pool.
            if (socket.is_some() || path.is_some()) && mode.is_none() {
                options = options.mode(PoolMode::Required);
            }
            if let Some(socket) = socket {
                options = options.socket(socket);
                // The variable may state a path.
                options.path = None;
            }
            Ok(match path {
                Some(path) => options.path(path),
                None => options,
            })
        };
        let options = made().map_err(|error| pool_raised(py, error))?;
        let options = options.timeout(seconds(py, "timeout", timeout)?);
        let pool = py.detach(|| library::Pool::connect(options)).map_err(|error| pool_raised(py, error))?;
        Ok(PoolHandle { pool: Mutex::new(Some(pool)) })
    }

    fn is_shared(&self) -> PyResult<bool> {
        Ok(self.open()?.kind() == PoolKind::Shared)
    }

    fn id(&self) -> PyResult<String> {
        Ok(self.open()?.id().to_string())
    }

    /// Returns the state as a JSON text.
    fn status(&self, py: Python<'_>) -> PyResult<String> {
        let pool = self.open()?;
        py.detach(|| pool.status()).map_err(|error| pool_raised(py, error))
    }

    #[allow(clippy::too_many_arguments, reason = "the keywords of the package's method")]
    fn producer(
        &self,
        py: Python<'_>,
        block_bytes: u64,
        blocks: u32,
        readers: u32,
        retain: Option<u32>,
        quota: Option<u32>,
        wait_for: Vec<String>,
        stream: &str,
    ) -> PyResult<ProducerHandle> {
        let pool = self.open()?;
        let mut options = library::ProducerOptions::new(block_bytes, blocks).readers(readers).stream(stream);
        (options.retain, options.quota, options.wait_for) = (retain, quota, wait_for);
        let producer = py.detach(|| pool.producer(&options)).map_err(|error| pool_raised(py, error))?;
        let held = Arc::new(ProducerWithPool { producer, pool });
        Ok(ProducerHandle { held: Mutex::new(Some(held)) })
    }

    fn acquire(&self, py: Python<'_>, token: &[u8]) -> PyResult<BlockRefHandle> {
        let pool = self.open()?;
        let held = py.detach(|| pool.acquire_bytes(token)).map_err(|error| acquire_raised(py, error))?;
        Ok(BlockRefHandle::new(AcquiredBlock { held, _pool: pool }))
    }

    fn skip(&self, py: Python<'_>, token: &[u8]) -> PyResult<()> {
        let pool = self.open()?;
        let skipped = py.detach(|| pool.skip(&library::Token::from_bytes(token)?));
        skipped.map_err(|error| acquire_raised(py, error))
    }

    #[getter]
    fn closed(&self) -> bool {
        self.pool.lock().ignore_poison().is_none()
    }

    fn close(&self, py: Python<'_>) {
        let held = self.pool.lock().ignore_poison().take();
        py.detach(|| drop(held));
    }
}

/// A producer and its connection, in the order in which they are dropped.
struct ProducerWithPool {
    producer: library::Producer,
    pool: library::Pool,
}

/// A producer, until it is closed.
#[pyclass(frozen, module = "hostbuf._hostbuf")]
pub struct ProducerHandle {
    held: Mutex<Option<Arc<ProducerWithPool>>>,
}

impl ProducerHandle {
    fn open(&self) -> PyResult<Arc<ProducerWithPool>> {
        let held = self.held.lock().ignore_poison();
        held.clone().ok_or_else(|| PyValueError::new_err("the producer is closed"))
    }
}

/// Returns the layout of an array at the beginning of a block. Without one it is the whole block.
pub fn array_layout(py: Python<'_>, given: Option<LayoutFields>, block_bytes: u64) -> PyResult<ArrayLayout> {
    let made = match given {
        None => ArrayLayout::contiguous(ElementType::Opaque, &[block_bytes]),
        Some((name, shape, strides)) => {
            let element = ElementType::from_name(&name)
                .ok_or_else(|| invalid(py, format!("invalid dtype {name}: blocks have no such type")))?;
            match strides {
                None => ArrayLayout::contiguous(element, &shape),
                Some(strides) => ArrayLayout::new(element, &shape, &strides),
            }
        }
    };
    made.and_then(|layout| layout.check_bounds(block_bytes).map(|()| layout))
        .map_err(|error| invalid(py, format!("invalid array in a block: {error}")))
}

/// Takes a free block, for which it waits at most the first of `limits` in seconds. Without a block
/// it returns `None`, or raises an error that states the second one.
pub fn take_block<B: Send>(
    py: Python<'_>,
    limits: (f64, Option<f64>),
    try_take: impl FnOnce() -> Result<Option<B>, TakeError>,
    take_timeout: impl FnOnce(Duration) -> Result<B, TakeError> + Send,
) -> PyResult<Option<B>> {
    let (wait, limit) = (seconds(py, "timeout", limits.0)?, limits.1);
    let taken = match try_take() {
        Ok(None) if !wait.is_zero() || limit.is_some() => py.detach(|| take_timeout(wait)).map(Some),
        other => other,
    };
    match (taken, limit) {
        (Ok(None) | Err(TakeError::Timeout { .. }), None) => Ok(None),
        (Ok(block), _) => Ok(block),
        (Err(TakeError::Timeout { details, .. }), Some(limit)) => {
            let limit = seconds(py, "timeout", limit)?;
            Err(take_raised(py, TakeError::Timeout { limit, details }))
        }
        (Err(error), _) => Err(take_raised(py, error)),
    }
}

#[pymethods]
impl ProducerHandle {
    /// Takes a free block, for which it waits at most `wait` seconds. Without a block it returns
    /// `None`, or raises an error that states `limit`.
    #[pyo3(signature = (layout, wait, limit))]
    fn take(
        &self,
        py: Python<'_>,
        layout: Option<LayoutFields>,
        wait: f64,
        limit: Option<f64>,
    ) -> PyResult<Option<BlockHandle>> {
        let held = self.open()?;
        let layout = array_layout(py, layout, held.producer.block_bytes())?;
        let producer = &held.producer;
        let taken =
            take_block(py, (wait, limit), || producer.try_take(), |wait| producer.take_timeout(wait))?;
        Ok(taken.map(|block| {
            let block = WritableBlock::new(block, held.pool.clone());
            BlockHandle::new(Arc::new(block), layout)
        }))
    }

    /// Takes a free block for a task of an event loop. `queue` gets the number once there is one.
    fn request(
        &self,
        py: Python<'_>,
        layout: Option<LayoutFields>,
        queue: &ReadyQueue,
        number: u64,
    ) -> PyResult<PendingBlock> {
        let held = self.open()?;
        let layout = array_layout(py, layout, held.producer.block_bytes())?;
        Ok(PendingBlock::new(queue.waker(number), async move {
            let block = WritableBlock::new(held.producer.take_async().await?, held.pool.clone());
            let made = move |py: Python<'_>| BlockHandle::new(Arc::new(block), layout).into_py_any(py);
            Ok(Box::new(made) as BlockMaker)
        }))
    }

    fn block_bytes(&self) -> PyResult<u64> {
        Ok(self.open()?.producer.block_bytes())
    }

    fn blocks(&self) -> PyResult<u32> {
        Ok(self.open()?.producer.blocks())
    }

    #[getter]
    fn closed(&self) -> bool {
        self.held.lock().ignore_poison().is_none()
    }

    fn close(&self, py: Python<'_>) {
        let held = self.held.lock().ignore_poison().take();
        py.detach(|| {
            if let Some(held) = &held {
                held.producer.close();
            }
            drop(held);
        });
    }
}
