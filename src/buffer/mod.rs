//! The host buffer: agreement on the address, segments, control page, arena, freeze, replicate.

pub mod agreement;
mod allocate;
mod arena;
mod attach;
pub use hostbuf_protocol::{ballot, candidates};
pub(crate) mod carrier;
mod containers;
pub mod control;
mod early;
pub mod foreign;
mod freeze;
pub mod handle;
mod handover;
mod initialize;
pub mod layout;
pub mod ledger;
pub mod options;
mod portable;
mod replicate;
pub mod segment;

pub use arena::{Arena, Placed};
pub use containers::{List, Map};
pub use control::{Fill, Phase};
pub use freeze::{Frozen, Proof};
pub use handle::HostBuffer;
pub use hostbuf_memory::Pages;
pub use options::Options;
pub use portable::Portable;
