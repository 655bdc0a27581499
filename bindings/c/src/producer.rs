//! Producers of blocks.

#![allow(unsafe_code, reason = "the functions are called by C, with pointers of the caller")]

use std::ffi::c_char;
use std::mem::MaybeUninit;
use std::ptr::{null, null_mut};
use std::sync::Arc;
use std::time::Duration;

use ::hostbuf_pool::{Block, Pool, Producer, ProducerOptions};
use library::sized_struct::SizedInput;

use crate::block::hostbuf_block;
use crate::pointers::{input, output, read, text};
use crate::pool::{hostbuf_pool, optional_text};
use crate::pool_status::{pool_error, take_error};
use crate::status::{CallError, CallResult, argument, call, hostbuf_status};

/// A producer of blocks, with memory of its own. Threads may share it.
pub struct hostbuf_producer {
    // In the order in which they are dropped: its end is sent by the connection.
    pub(crate) producer: Arc<Producer>,
    pub(crate) pool: Pool,
}

/// The options of a producer. All except the length of a block have defaults.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct hostbuf_producer_options {
    /// The size of this structure: initialize it with `HOSTBUF_PRODUCER_OPTIONS_INIT`.
    pub struct_size: usize,
    /// The length of a block in bytes; it is rounded up to whole pages of 4 KiB.
    pub block_bytes: u64,
    /// The number of blocks. 0 means 8.
    pub blocks: u32,
    /// The number of processes that may read at the same time. 0 means 8.
    pub readers: u32,
    /// The number of published blocks that late readers may still acquire. 0 means half of the
    /// blocks.
    pub retain: u32,
    /// The number of blocks that one reader may hold. 0 means half of the blocks.
    pub quota: u32,
    /// The names of the readers that the producer waits for: no block is reused before all of them
    /// have read it. Null if there are none.
    pub wait_for: *const *const c_char,
    /// The number of these names.
    pub wait_for_count: usize,
    /// The name of the stream, for people, or null.
    pub stream: *const c_char,
}

sized_struct!(hostbuf_producer_options, "HOSTBUF_PRODUCER_OPTIONS_INIT", last: stream: *const c_char);

// SAFETY: numbers and raw pointers.
unsafe impl SizedInput for hostbuf_producer_options {
    const DEFAULT: hostbuf_producer_options = hostbuf_producer_options {
        struct_size: size_of::<hostbuf_producer_options>(),
        block_bytes: 0,
        blocks: 0,
        readers: 0,
        retain: 0,
        quota: 0,
        wait_for: null(),
        wait_for_count: 0,
        stream: null(),
    };
}

/// The default number of blocks.
const BLOCKS: u32 = 8;

/// Returns the options of the caller.
///
/// # Safety
/// `options` is null, or valid with valid texts.
pub(crate) unsafe fn producer_options(
    options: *const hostbuf_producer_options,
) -> CallResult<ProducerOptions> {
    // SAFETY: by the contract of this function.
    let given: hostbuf_producer_options = unsafe { read(options, "options") }?;
    let some = |number: u32| (number > 0).then_some(number);
    let mut made = ProducerOptions::new(given.block_bytes, some(given.blocks).unwrap_or(BLOCKS));
    made.readers = some(given.readers).unwrap_or(ProducerOptions::READERS);
    (made.retain, made.quota) = (some(given.retain), some(given.quota));
    if given.wait_for_count > 0 && given.wait_for.is_null() {
        return Err(argument(format!(
            "options.wait_for is null, but there are {} names",
            given.wait_for_count
        )));
    }
    for index in 0..given.wait_for_count {
        // SAFETY: by the contract of this function.
        let name = unsafe { text(*given.wait_for.add(index), &format!("options.wait_for[{index}]")) }?;
        made.wait_for.push(name.to_owned());
    }
    // SAFETY: by the contract of this function.
    if let Some(stream) = unsafe { optional_text(given.stream, "options.stream") }? {
        made = made.stream(stream);
    }
    Ok(made)
}

/// Makes a producer with its blocks. `HOSTBUF_NO_SPACE`: they would exceed a limit of the broker.
// Safety: the pointers are null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hostbuf_pool_producer(
    pool: Option<&hostbuf_pool>,
    options: *const hostbuf_producer_options,
    to: Option<&mut MaybeUninit<*mut hostbuf_producer>>,
) -> hostbuf_status {
    call(|| {
        let to = output(to, "to", null_mut())?;
        let pool = &input(pool, "pool")?.pool;
        // SAFETY: by the contract of this function.
        let options = unsafe { producer_options(options) }?;
        let producer = pool.producer(&options).map_err(pool_error)?;
        *to = Box::into_raw(Box::new(hostbuf_producer { producer: Arc::new(producer), pool: pool.clone() }));
        Ok(())
    })
}

/// Closes a producer. Readers may read what it has published for some seconds, and until the last
/// of them has released it. Its unpublished blocks stay valid. Its pending blocks end with
/// `HOSTBUF_CLOSED`: this calls their functions. A null producer is ignored.
// Safety: `producer` is a live handle. It is not used again.
#[unsafe(no_mangle)]
pub extern "C" fn hostbuf_producer_close(producer: Option<Box<hostbuf_producer>>) {
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
pub extern "C" fn hostbuf_producer_block_bytes(producer: Option<&hostbuf_producer>) -> u64 {
    producer.map_or(0, |producer| producer.producer.block_bytes())
}

/// Returns the number of blocks, or 0 if the producer is null.
// Safety: `producer` is null or a live handle.
#[unsafe(no_mangle)]
pub extern "C" fn hostbuf_producer_blocks(producer: Option<&hostbuf_producer>) -> u32 {
    producer.map_or(0, |producer| producer.producer.blocks())
}

/// Takes a block by `take`.
fn take_by(
    producer: Option<&hostbuf_producer>,
    to: Option<&mut MaybeUninit<*mut hostbuf_block>>,
    take: impl FnOnce(&Producer) -> CallResult<Block>,
) -> hostbuf_status {
    call(|| {
        let to = output(to, "to", null_mut())?;
        let producer = input(producer, "producer")?;
        let block = take(&producer.producer)?;
        *to = Box::into_raw(Box::new(hostbuf_block::new(block, &producer.pool)));
        Ok(())
    })
}

/// Takes a free block, for which it waits.
// Safety: the pointers are null or valid.
#[unsafe(no_mangle)]
pub extern "C" fn hostbuf_producer_take(
    producer: Option<&hostbuf_producer>,
    to: Option<&mut MaybeUninit<*mut hostbuf_block>>,
) -> hostbuf_status {
    take_by(producer, to, |producer| producer.take().map_err(take_error))
}

/// Takes a free block without waiting. Returns `HOSTBUF_NOTHING` if there is none.
// Safety: the pointers are null or valid.
#[unsafe(no_mangle)]
pub extern "C" fn hostbuf_producer_try_take(
    producer: Option<&hostbuf_producer>,
    to: Option<&mut MaybeUninit<*mut hostbuf_block>>,
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
pub extern "C" fn hostbuf_producer_take_timeout(
    producer: Option<&hostbuf_producer>,
    timeout_ns: u64,
    to: Option<&mut MaybeUninit<*mut hostbuf_block>>,
) -> hostbuf_status {
    let limit = Duration::from_nanos(timeout_ns);
    take_by(producer, to, |producer| producer.take_timeout(limit).map_err(take_error))
}
