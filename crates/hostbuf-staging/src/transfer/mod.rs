//! Transfers: what they move, and how they end.

mod chunk_plan;
mod pending_transfer;
mod transfer_error;
mod transfer_state;

pub(crate) use chunk_plan::{Chunk, ChunkPlan};
pub use pending_transfer::Transfer;
pub use transfer_error::TransferError;
pub(crate) use transfer_state::{HostSide, TransferState};
