//! The side of a mirror that sends blocks.

mod connection;
#[cfg(feature = "rdma")]
mod frame_offers;
#[cfg(not(feature = "rdma"))]
#[path = "no_frame_offers.rs"]
mod frame_offers;
mod frame_outcome;
mod known_segments;
mod mirror_sender;
#[cfg(any(feature = "rdma", test))]
mod offered_frames;
mod open;
mod options;
mod pending_mirror;
mod queue;
mod sender_counters;
mod worker;

pub use mirror_sender::MirrorSender;
pub use options::MirrorSenderOptions;
pub use pending_mirror::PendingMirror;
pub use sender_counters::SenderCounters;
