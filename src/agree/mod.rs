//! The agreement of a job's ranks on one address.

pub mod election;
pub(crate) mod handover;
