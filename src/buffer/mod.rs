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
#[path = "../../crates/hostbuf-memory/src/populate/mod.rs"]
pub mod populate;
mod portable;
mod replicate;
pub mod segment;
#[path = "../../crates/hostbuf-memory/src/space.rs"]
pub mod space;

pub use arena::{Arena, Placed};
pub use containers::{List, Map};
pub use control::{Fill, Phase};
pub use freeze::{Frozen, Proof};
pub use handle::HostBuffer;
pub use options::{Options, Pages};
pub use portable::Portable;
