//! Transfers: what they move, and how they end.

mod chunk_plan;
mod gather_plan;
mod pending_transfer;
mod planned_piece;
mod transfer_error;
mod transfer_plan;
mod transfer_span;
mod transfer_state;

pub(crate) use chunk_plan::ChunkPlan;
pub(crate) use gather_plan::GatherPlan;
pub use gather_plan::TransferPart;
pub use pending_transfer::Transfer;
pub(crate) use planned_piece::{PiecePart, PlanSizes};
pub use transfer_error::TransferError;
pub(crate) use transfer_plan::TransferPlan;
pub(crate) use transfer_state::{HostSide, TransferState};
