//! The clients of a broker: producers and readers of blocks.

mod acquire_error;
mod attached_segment;
mod block;
mod block_ref;
mod broker_link;
mod broker_process;
mod connect;
mod connection;
mod pool;
mod pool_client;
mod pool_options;
mod private_broker;
mod producer;
mod producer_options;
mod producer_segment;
mod reader_policy;
mod segment_reader;
mod segment_registrations;
mod service;
mod take_error;
mod unpublished_ref;

pub use acquire_error::AcquireError;
pub use block::{Block, PublishError};
pub use block_ref::BlockRef;
pub use pool::{Pool, PoolKind};
pub use pool_options::{PoolMode, PoolOptions};
pub use producer::Producer;
pub use producer_options::ProducerOptions;
pub use segment_reader::SegmentReader;
pub use take_error::TakeError;
pub use unpublished_ref::UnpublishedRef;
