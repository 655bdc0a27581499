//! The messages between a broker and its clients.

mod message;
mod refusal_record;
mod segment_key;

pub(crate) use message::{PoolMessage, SegmentTerms};
pub(crate) use refusal_record::{RefusalKind, RefusalRecord};
pub use segment_key::SegmentKey;
