//! The agreement of a job's ranks on one address. Launchers use this module; programs use
//! [`HostBuffer::allocate`](crate::HostBuffer::allocate).

pub(crate) mod election;
pub(crate) mod handover;
mod watched_rank;

pub use election::{ElectionOutcome, Electorate, RangeRequest, describe, disagreement, elect, reason};
