//! Memory blocks shared between the processes of a host.

pub mod adopt;
mod broker;
mod client;
mod clock;
#[cfg(feature = "cuda")]
mod cuda_completion;
mod dma;
mod error;
mod header;
mod hold;
mod latency;
mod name_hash;
mod pool_id;
mod private_packet;
mod releases;
mod segment;
mod socket_name;
mod token;
mod wire;

pub use broker::{Broker, BrokerOptions};
pub use client::{
    AcquireError, Block, BlockRef, Pool, PoolKind, PoolMode, PoolOptions, Producer, ProducerOptions,
    PublishError, SegmentReader, TakeError, UnpublishedRef,
};
#[cfg(feature = "cuda")]
pub use client::{GpuBlock, GpuBlockRef, GpuProducer, GpuPublishError, GpuPublishFailure, ReadyError};
pub use dma::{CopyReason, DmaPath};
pub use error::{BrokerRefusal, InvalidGeometry, PoolError};
pub use header::{ArrayLayout, BlockHeader, ElementType, InvalidHeader, InvalidLayout};
pub use latency::{LatencyHistogram, LatencySnapshot};
pub use pool_id::PoolId;
pub use releases::Completion;
pub use token::{InvalidToken, Token};
pub use wire::SegmentKey;
