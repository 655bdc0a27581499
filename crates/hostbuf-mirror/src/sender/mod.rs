//! The side of a mirror that sends blocks.

mod connection;
mod frame_outcome;
mod mirror_sender;
mod open;
mod options;
mod pending_mirror;
mod queue;
mod worker;

pub use mirror_sender::MirrorSender;
pub use options::MirrorSenderOptions;
pub use pending_mirror::PendingMirror;
