//! The messages between a broker and its clients.

mod gpu_terms;
mod message;
mod refusal_record;
mod segment_key;

#[cfg(feature = "cuda")]
pub(crate) use gpu_terms::GpuTerms;
pub(crate) use message::{PoolMessage, SegmentTerms};
pub(crate) use refusal_record::{RefusalKind, RefusalRecord};
pub use segment_key::SegmentKey;
