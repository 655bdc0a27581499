//! Producers of blocks on a GPU.

#![allow(unsafe_code, reason = "the functions are called by C, with pointers of the caller")]

use std::mem::MaybeUninit;
use std::ptr::null_mut;
use std::sync::Arc;
use std::time::Duration;

use ::hostbuf_pool::{GpuBlock, GpuProducer, PoolError};
use hostbuf_cuda::{CudaContext, Driver};

use crate::gpu_block::hostbuf_gpu_block;
use crate::pointers::{input, output};
use crate::pool::hostbuf_pool;
use crate::pool_status::{cuda_error, pool_error, take_error};
use crate::producer::{hostbuf_producer_options, producer_options};
use crate::status::{CallError, CallResult, call, hostbuf_status};

/// A producer of blocks on a GPU. Threads may share it.
pub struct hostbuf_gpu_producer {
    pub(crate) producer: Arc<GpuProducer>,
}

/// Makes a producer with its blocks on the GPU that has the number `gpu` in this process. The first
/// call loads the driver, and uses the primary context of the GPU.
///
/// `HOSTBUF_NO_SPACE`: the blocks would exceed a limit of the broker for GPUs.
/// `HOSTBUF_UNSUPPORTED`: there is no driver or no such GPU, or the driver has refused the memory.
// Safety: the pointers are null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hostbuf_pool_gpu_producer(
    pool: Option<&hostbuf_pool>,
    options: *const hostbuf_producer_options,
    gpu: u32,
    to: Option<&mut MaybeUninit<*mut hostbuf_gpu_producer>>,
) -> hostbuf_status {
    call(|| {
        let to = output(to, "to", null_mut())?;
        let pool = &input(pool, "pool")?.pool;
        // SAFETY: by the contract of this function.
        let options = unsafe { producer_options(options) }?;
        let gpu = Driver::find().and_then(|driver| driver.gpu(gpu)).map_err(cuda_error)?;
        let context = CudaContext::retain(&gpu).map_err(cuda_error)?;
        let producer = pool.gpu_producer(&options, &context).map_err(pool_error)?;
        *to = Box::into_raw(Box::new(hostbuf_gpu_producer { producer: Arc::new(producer) }));
        Ok(())
    })
}

/// Closes a producer. Once its blocks are published or freed too, it waits for the work that writes
/// published blocks. Readers may read them for some seconds, and until the last of them has
/// released them. Its pending blocks end with `HOSTBUF_CLOSED`: this calls their functions. A null
/// producer is ignored.
// Safety: `producer` is a live handle. It is not used again.
#[unsafe(no_mangle)]
pub extern "C" fn hostbuf_gpu_producer_close(producer: Option<Box<hostbuf_gpu_producer>>) {
    call(|| {
        if let Some(producer) = &producer {
            producer.producer.close();
        }
        drop(producer);
        Ok(())
    });
}

/// Returns the length of a block in bytes, or 0 if the producer is null.
// Safety: `producer` is null or a live handle.
#[unsafe(no_mangle)]
pub extern "C" fn hostbuf_gpu_producer_block_bytes(producer: Option<&hostbuf_gpu_producer>) -> u64 {
    producer.map_or(0, |producer| producer.producer.block_bytes())
}

/// Returns the number of blocks, or 0 if the producer is null.
// Safety: `producer` is null or a live handle.
#[unsafe(no_mangle)]
pub extern "C" fn hostbuf_gpu_producer_blocks(producer: Option<&hostbuf_gpu_producer>) -> u32 {
    producer.map_or(0, |producer| producer.producer.blocks())
}

/// Takes a block by `take`.
fn take_by(
    producer: Option<&hostbuf_gpu_producer>,
    to: Option<&mut MaybeUninit<*mut hostbuf_gpu_block>>,
    take: impl FnOnce(&GpuProducer) -> CallResult<GpuBlock>,
) -> hostbuf_status {
    call(|| {
        let to = output(to, "to", null_mut())?;
        let producer = input(producer, "producer")?;
        if producer.producer.context().is_inherited() {
            return Err(pool_error(PoolError::Forked));
        }
        let block = take(&producer.producer)?;
        *to = Box::into_raw(Box::new(hostbuf_gpu_block { block }));
        Ok(())
    })
}

/// Takes a free block, for which it waits.
// Safety: the pointers are null or valid.
#[unsafe(no_mangle)]
pub extern "C" fn hostbuf_gpu_producer_take(
    producer: Option<&hostbuf_gpu_producer>,
    to: Option<&mut MaybeUninit<*mut hostbuf_gpu_block>>,
) -> hostbuf_status {
    take_by(producer, to, |producer| producer.take().map_err(take_error))
}

/// Takes a free block without waiting. Returns `HOSTBUF_NOTHING` if there is none.
// Safety: the pointers are null or valid.
#[unsafe(no_mangle)]
pub extern "C" fn hostbuf_gpu_producer_try_take(
    producer: Option<&hostbuf_gpu_producer>,
    to: Option<&mut MaybeUninit<*mut hostbuf_gpu_block>>,
) -> hostbuf_status {
    take_by(producer, to, |producer| {
        let taken = producer.try_take().map_err(take_error)?;
        taken.ok_or_else(|| CallError::Nothing("no block is free".into()))
    })
}

/// Takes a free block, for which it waits at most `timeout_ns` nanoseconds. Returns
/// `HOSTBUF_TIMEOUT` if none became free; the message states who holds the blocks.
// Safety: the pointers are null or valid.
#[unsafe(no_mangle)]
pub extern "C" fn hostbuf_gpu_producer_take_timeout(
    producer: Option<&hostbuf_gpu_producer>,
    timeout_ns: u64,
    to: Option<&mut MaybeUninit<*mut hostbuf_gpu_block>>,
) -> hostbuf_status {
    let limit = Duration::from_nanos(timeout_ns);
    take_by(producer, to, |producer| producer.take_timeout(limit).map_err(take_error))
}
