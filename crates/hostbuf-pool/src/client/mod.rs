//! The clients of a broker: producers and readers of blocks.

mod acquire_error;
mod attached_data;
mod attached_segment;
mod block;
mod block_ref;
mod broker_link;
mod broker_process;
mod caller_registrations;
mod connect;
mod connection;
#[cfg(feature = "cuda")]
mod gpu_block;
#[cfg(feature = "cuda")]
mod gpu_block_ref;
#[cfg(feature = "cuda")]
mod gpu_pool;
#[cfg(feature = "cuda")]
mod gpu_producer;
#[cfg(feature = "cuda")]
mod imported_gpu;
#[cfg(feature = "cuda")]
mod own_events;
mod peer_broker;
mod pending_take;
mod pool;
mod pool_client;
mod pool_options;
mod private_broker;
#[cfg(feature = "cuda")]
mod produced_gpu;
mod producer;
mod producer_data;
mod producer_options;
mod producer_segment;
mod reader_policy;
#[cfg(feature = "cuda")]
mod ready_error;
mod reconnect_attempts;
mod segment_reader;
mod segment_registrations;
mod service;
mod take_error;
mod taker_queue;
mod unpublished_ref;

pub use acquire_error::AcquireError;
pub use block::{Block, PublishError};
pub use block_ref::BlockRef;
#[cfg(feature = "cuda")]
pub use gpu_block::{GpuBlock, GpuPublishError, GpuPublishFailure};
#[cfg(feature = "cuda")]
pub use gpu_block_ref::GpuBlockRef;
#[cfg(feature = "cuda")]
pub use gpu_producer::GpuProducer;
pub use pool::{Pool, PoolKind};
pub use pool_options::{PoolMode, PoolOptions};
pub use producer::Producer;
pub use producer_options::ProducerOptions;
#[cfg(feature = "cuda")]
pub use ready_error::ReadyError;
pub use segment_reader::SegmentReader;
pub use take_error::TakeError;
pub use unpublished_ref::UnpublishedRef;
